//! Bounded queues for cancels and live events: when full, the oldest entry is dropped.

use std::collections::VecDeque;

const MAX_SIGNALS: usize = 1024;

pub fn push_bounded<T>(queue: &mut VecDeque<T>, item: T) {
    if queue.len() >= MAX_SIGNALS {
        queue.pop_front();
    }
    queue.push_back(item);
}
