//! Spreads work over all processors.

use std::{
    num::NonZero,
    panic::resume_unwind,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

/// Threads, at most. With more, the memory allocator is the bottleneck.
const MAX_THREADS: usize = 8;

/// Applies `work` to each of `items`. The results are in the items' order. Each thread gets at
/// least `min_per_thread` items.
pub(super) fn map<T: Sync, R: Send>(items: &[T], min_per_thread: usize, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let worth = MAX_THREADS.min(items.len() / min_per_thread.max(1));
    // Called last: it takes longer than parsing a small file.
    let processors = || thread::available_parallelism().map_or(1, NonZero::get);
    let threads = if worth < 2 { 1 } else { worth.min(processors()) };
    if threads < 2 {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let run = || {
        let mut done = Vec::new();
        while let index = next.fetch_add(1, Ordering::Relaxed)
            && let Some(item) = items.get(index)
        {
            done.push((index, work(item)));
        }
        done
    };
    let mut done: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        let items: Vec<usize> = (0..10_000).collect();
        assert_eq!(map(&items, 32, |item| item * 2), items.iter().map(|item| item * 2).collect::<Vec<_>>());
        assert_eq!(map(&[] as &[usize], 1, |item| *item), [] as [usize; 0]);
    }
}
