//! Every target holds for all of its seeds, in every test run and without libFuzzer.

use std::fs;
use std::path::Path;
use toolbus_fuzz::TARGETS;

#[test]
fn every_target_has_seeds_and_holds_for_them() {
    for (name, target) in TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        let seeds = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut count = 0;
        for seed in seeds {
            let path = seed.expect("a file").path();
            println!("{}", path.display());
            target(&fs::read(&path).expect("its content"));
            count += 1;
        }
        assert!(count > 0, "{name} has no seeds");
    }
}
