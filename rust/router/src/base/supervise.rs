//! Restarts background tasks, such as health checks, after a panic.

use std::any::Any;
use std::time::Duration;

use tokio::task::{JoinError, spawn_local};
use tokio::time::sleep;

/// The pause before a restart, so that a task that fails at once does not fill the log.
const PAUSE: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 1000 });

/// Runs a task to its end. After a panic it begins again.
pub fn keep_running<F>(name: &'static str, mut begin: impl FnMut() -> F + 'static)
where
    F: Future<Output = ()> + 'static,
{
    spawn_local(async move {
        while let Err(error) = spawn_local(begin()).await {
            let Some(why) = panicked(error) else {
                return; // The runtime is ending.
            };
            tracing::error!(
                task = name,
                why,
                "a task of the router's own failed, and begins again"
            );
            sleep(PAUSE).await;
        }
    });
}

/// Runs a task that cannot begin again. If it panics, `failed` is called.
pub fn run_or(
    name: &'static str,
    task: impl Future<Output = ()> + 'static,
    failed: impl FnOnce() + 'static,
) {
    spawn_local(async move {
        let Err(error) = spawn_local(task).await else {
            return;
        };
        if let Some(why) = panicked(error) {
            tracing::error!(
                task = name,
                why,
                "a task that the router cannot go on without failed"
            );
            failed();
        }
    });
}

/// The text of a task's panic; None if the task was only cancelled.
fn panicked(error: JoinError) -> Option<String> {
    let panic = error.try_into_panic().ok()?;
    Some(text_of(&*panic).to_owned())
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("it panicked")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use tokio::runtime::{Builder, LocalOptions};

    use super::*;

    fn run(test: impl Future<Output = ()>) {
        Builder::new_current_thread()
            .enable_all()
            .build_local(LocalOptions::default())
            .unwrap()
            .block_on(test);
    }

    /// Waits until `count` is reached, and a little longer to see that it is not exceeded. Printing a panic's
    /// backtrace may take a second.
    async fn until(reached: &Cell<u32>, count: u32) {
        for _ in 0..1000 {
            if reached.get() >= count {
                break;
            }
            sleep(PAUSE).await;
        }
        sleep(PAUSE * 5).await;
        assert_eq!(reached.get(), count);
    }

    #[test]
    fn a_task_that_panics_begins_again_until_it_ends() {
        run(async {
            let begun = Rc::new(Cell::new(0));
            let count = begun.clone();
            keep_running("test", move || {
                count.set(count.get() + 1);
                let number = count.get();
                async move { assert!(number >= 3, "the {number}th time") }
            });
            until(&begun, 3).await;
        });
    }

    #[test]
    fn a_task_that_cannot_begin_again_is_told_of() {
        run(async {
            let failed = Rc::new(Cell::new(0));
            for task in [true, false] {
                let count = failed.clone();
                let task = async move { assert!(task) };
                run_or("test", task, move || {
                    count.set(count.get() + 1);
                });
            }
            until(&failed, 1).await;
        });
    }
}
