//! What the NATS servers have to be like. A receipt means that a message survives: a server that would lose it is refused.

use async_nats::jetstream::stream::Config;

/// The oldest version of nats-server that is accepted. Earlier ones could assign a sequence number twice around an election.
pub const OLDEST_SERVER: (u64, u64) = (2, 15);

/// A requirement that the servers, or the settings of a stream, don't meet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unmet {
    /// The server is too old.
    #[error("nats-server {found} is too old; 2.15 or later is required")]
    Version {
        /// The version of the server.
        found: String,
    },
    /// A setting of a stream was changed, or the stream belongs to something else.
    #[error("the stream {stream} has {setting} = {found}; {wanted} is required")]
    Setting {
        /// Name of the stream.
        stream: String,
        /// Name of the setting.
        setting: &'static str,
        /// Its value.
        found: String,
        /// The value that it must have.
        wanted: String,
    },
    /// A server confirms writes before they are on its disk.
    #[error(
        "the NATS server at {server} does not sync every write; set `sync_interval: always` in its jetstream block"
    )]
    AsyncSync {
        /// Its monitoring address.
        server: String,
    },
    /// Not all servers were asked whether they sync every write.
    #[error("{told} of {servers} NATS servers told whether they sync every write")]
    SyncPartlyKnown {
        /// How many told.
        told: usize,
        /// How many there are.
        servers: usize,
    },
    /// No server was asked whether it syncs every write.
    #[error("it is not known whether the NATS servers sync every write")]
    SyncUnknown,
}

pub(crate) fn check_version(found: &str) -> Result<(), Unmet> {
    let mut numbers = found.split(['.', '-']).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= OLDEST_SERVER => Ok(()),
        _ => Err(Unmet::Version { found: found.to_owned() }),
    }
}

/// Checks a stream that exists against the settings that a new one would get. More replicas are accepted.
pub(crate) fn check_stream(found: &Config, wanted: &Config) -> Result<(), Unmet> {
    let settings = [
        ("storage", format!("{:?}", found.storage), format!("{:?}", wanted.storage)),
        ("retention", format!("{:?}", found.retention), format!("{:?}", wanted.retention)),
        ("discard", format!("{:?}", found.discard), format!("{:?}", wanted.discard)),
        ("subjects", found.subjects.join(","), wanted.subjects.join(",")),
        ("max_age", format!("{:?}", found.max_age), format!("{:?}", wanted.max_age)),
        ("max_msgs", found.max_messages.max(0).to_string(), wanted.max_messages.max(0).to_string()),
    ];
    let replicas = |config: &Config| config.num_replicas.max(1);
    let too_few = (replicas(found) < replicas(wanted))
        .then(|| ("num_replicas", replicas(found).to_string(), format!("{} or more", replicas(wanted))));
    let different = settings.into_iter().find(|(_, found, wanted)| found != wanted).or(too_few);
    match different {
        Some((setting, found, wanted_value)) => {
            Err(Unmet::Setting { stream: wanted.name.clone(), setting, found, wanted: wanted_value })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_nats::jetstream::stream::StorageType;

    #[test]
    fn versions_before_2_15_are_refused() {
        for accepted in ["2.15.0", "2.15.1", "2.16.0-RC.1", "3.0.0"] {
            assert_eq!(check_version(accepted), Ok(()), "{accepted}");
        }
        for refused in ["2.14.9", "1.99.0", "2", "", "v2.15.0", "two.fifteen"] {
            assert_eq!(check_version(refused), Err(Unmet::Version { found: refused.into() }));
        }
    }

    #[test]
    fn a_stream_that_would_lose_messages_is_refused() {
        let wanted = Config { name: "S".into(), num_replicas: 3, ..Config::default() };
        let check = |found: Config| check_stream(&found, &wanted).map_err(|unmet| unmet.to_string());
        assert_eq!(check(wanted.clone()), Ok(()));
        assert_eq!(check(Config { num_replicas: 5, ..wanted.clone() }), Ok(()));
        let memory = check(Config { storage: StorageType::Memory, ..wanted.clone() });
        assert_eq!(memory, Err("the stream S has storage = Memory; File is required".into()));
        let single = check(Config { num_replicas: 1, ..wanted.clone() });
        assert_eq!(single, Err("the stream S has num_replicas = 1; 3 or more is required".into()));
        let limited = check(Config { max_messages: 9, ..wanted.clone() });
        assert_eq!(limited, Err("the stream S has max_msgs = 9; 0 is required".into()));
    }
}
