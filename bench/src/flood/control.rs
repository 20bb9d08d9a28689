//! The control of a measurement: a process that uses as much CPU as the hostile agents did, and nothing else. The
//! difference between the two is what toolbus lets hostile agents do to honest ones.

use std::{
    thread,
    time::{Duration, Instant},
};

use clap::Args;

/// Each thread alternates between spinning and sleeping within this time.
const SLICE: Duration = Duration::from_millis(2);

#[derive(Args)]
pub struct ControlOptions {
    /// CPU to use, in cores.
    #[arg(long)]
    pub cores: f64,
}

/// Uses CPU until the process is killed.
pub fn burn(options: &ControlOptions) {
    let threads = options.cores.ceil().max(1.0);
    let share = (options.cores / threads).clamp(0.0, 1.0);
    let spinning: Vec<_> = (0..threads as usize).map(|_| thread::spawn(move || spin(share))).collect();
    for thread in spinning {
        thread.join().ok();
    }
}

fn spin(share: f64) {
    loop {
        let begin = Instant::now();
        while begin.elapsed() < SLICE.mul_f64(share) {
            std::hint::spin_loop();
        }
        thread::sleep(SLICE.mul_f64(1.0 - share));
    }
}
