//! The fuzzing program. Built by `cargo xtask fuzz`, it is libFuzzer with the target that the environment names. Built
//! without instrumentation, it runs a target on the given files once, which is how a finding is debugged:
//! `TOOLBUS_FUZZ_TARGET=sse cargo run -p toolbus-fuzz -- FILE`.
#![cfg_attr(fuzzing, no_main)]

use toolbus_fuzz::{TARGET_VARIABLE, Target};

fn chosen() -> Target {
    let name = std::env::var(TARGET_VARIABLE).unwrap_or_default();
    toolbus_fuzz::target(&name).unwrap_or_else(|| panic!("{TARGET_VARIABLE}={name}: there is no such target"))
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static CHOSEN: std::sync::OnceLock<Target> = std::sync::OnceLock::new();
    CHOSEN.get_or_init(chosen)(data);
});

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    for file in std::env::args_os().skip(1) {
        chosen()(&std::fs::read(&file)?);
    }
    Ok(())
}
