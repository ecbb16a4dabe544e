//! Follows lists of workers in a file or in DNS. A listed worker joins the fleet; one that is no longer listed leaves
//! it once it is idle.

mod dns;
mod file;
mod roster;

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, sleep};

use self::dns::DnsName;
use self::file::WorkersFile;
use self::roster::Roster;
use crate::base::config_error::ConfigError;
use crate::base::supervise::keep_running;
use crate::fleet::worker::Fleet;

/// How often the file is checked. A change counts once the file looks the same twice.
const FILE_INTERVAL: Duration = Duration::from_millis(500);

/// The lists of workers.
pub struct Sources {
    pub file: Option<PathBuf>,
    pub names: Vec<DnsName>,
    /// How often the names are resolved.
    pub dns_interval: Duration,
}

/// Reads `name:port` for each name.
pub fn names(texts: &[String]) -> Result<Vec<DnsName>, ConfigError> {
    texts.iter().map(|text| DnsName::parse(text)).collect()
}

pub struct Discovery {
    file: Option<WorkersFile>,
    names: Vec<DnsName>,
    roster: Roster,
    follower: Follower,
}

/// What following one name needs.
#[derive(Clone)]
struct Follower {
    dns_interval: Duration,
    reload: watch::Receiver<()>,
}

impl Discovery {
    /// Adds the workers in the file to the fleet. Names are resolved later, by `watch`. Both are read again at once if
    /// `reload` changes.
    pub fn start(
        fleet: Arc<Fleet>,
        sources: Sources,
        reload: watch::Receiver<()>,
    ) -> Result<Discovery, ConfigError> {
        let mut roster = Roster::new(fleet, 1 + sources.names.len());
        let mut file = sources.file.map(WorkersFile::new);
        if let Some(file) = &mut file {
            let urls = file
                .read()
                .map_err(|why| ConfigError(format!("workers_file: {why}")))?;
            roster.list(0, urls);
        }
        Ok(Discovery {
            file,
            names: sources.names,
            roster,
            follower: Follower {
                dns_interval: sources.dns_interval,
                reload,
            },
        })
    }

    /// Follows the lists until the runtime ends.
    pub async fn watch(self) {
        let roster = Rc::new(RefCell::new(self.roster));
        for (index, name) in self.names.into_iter().enumerate() {
            let (follower, roster, name) = (self.follower.clone(), roster.clone(), Rc::new(name));
            keep_running("a name of workers", move || {
                follower
                    .clone()
                    .follow(roster.clone(), 1 + index, name.clone())
            });
        }
        let mut file = self.file;
        let mut reload = self.follower.reload.clone();
        let mut tick = interval(FILE_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let asked = tokio::select! {
                _ = tick.tick() => false,
                changed = reload.changed() => changed.is_ok(),
            };
            roster.borrow_mut().remove_idle();
            let Some(mut reading) = file.take() else {
                continue;
            };
            // The file may be on a disk that hangs.
            let read = move || {
                let urls = reading.changes(asked);
                (reading, urls)
            };
            let Ok((again, urls)) = spawn_blocking(read).await else {
                return; // The runtime is ending.
            };
            file = Some(again);
            match urls {
                None => {}
                Some(Ok(urls)) => {
                    tracing::info!(workers = %urls.len(), "the workers' file was read");
                    roster.borrow_mut().list(0, urls);
                }
                Some(Err(why)) => tracing::warn!(error = %why, "the workers stay as they are"),
            }
        }
    }
}

/// A resolver that says by mistake that a name does not exist would end a fleet whose workers are all up. So it is
/// believed the second time.
#[derive(Default)]
struct Doubt {
    was_empty: bool,
}

impl Doubt {
    /// Whether this is the first of the look-ups that found no address.
    fn is_due(&mut self, found: &Result<Vec<String>, String>) -> bool {
        let is_empty = found.as_ref().is_ok_and(Vec::is_empty);
        let was_empty = std::mem::replace(&mut self.was_empty, is_empty);
        is_empty && !was_empty
    }
}

impl Follower {
    /// Resolves a name over and over.
    async fn follow(mut self, roster: Rc<RefCell<Roster>>, source: usize, name: Rc<DnsName>) {
        let mut last: Option<Result<Vec<String>, String>> = None;
        let mut doubt = Doubt::default();
        loop {
            let found = name.resolve().await;
            if doubt.is_due(&found) && last.is_some() {
                tracing::warn!(%name, "a name is gone; its workers stay until the next look-up says so too");
            } else if last.as_ref() != Some(&found) {
                match &found {
                    Ok(urls) => {
                        tracing::info!(%name, workers = %urls.len(), "a name was resolved");
                        roster.borrow_mut().list(source, urls.clone());
                    }
                    Err(why) => tracing::warn!(
                        %name,
                        error = %why,
                        "a name cannot be resolved, its workers stay as they are"
                    ),
                }
                last = Some(found);
            }
            tokio::select! {
                () = sleep(self.dns_interval) => {}
                _ = self.reload.changed() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_gone_when_two_answers_in_a_row_say_so() {
        let mut doubt = Doubt::default();
        let some = Ok(vec!["http://10.0.0.1:8".to_owned()]);
        let answers = [
            (&some, false),
            (&Ok(vec![]), true),
            (&some, false),
            (&Ok(vec![]), true),
            (&Ok(vec![]), false),
            (&Ok(vec![]), false),
            (&Err("no answer".to_owned()), false),
            (&Ok(vec![]), true),
        ];
        for (found, expected) in answers {
            assert_eq!(doubt.is_due(found), expected, "{found:?}");
        }
    }
}
