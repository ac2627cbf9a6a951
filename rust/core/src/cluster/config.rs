//! What a deployment decides about its cluster.

use super::error::ConfigError;
use crate::ids::Epoch;
use crate::time::{MILLISECOND, Nanos, SECOND};
use serde::{Deserialize, Serialize};

/// Limits and times of a cluster. Times are nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterConfig {
    /// This life of the cluster; at least 1, and never one that its workers have seen before.
    pub epoch: Epoch,
    /// A reservation lapses when its other side is silent for this long.
    pub lease_ns: Nanos,
    /// How often workers report their load.
    pub heartbeat_ns: Nanos,
    /// A worker that says nothing for this long gets no new requests.
    pub worker_silence_ns: Nanos,
    /// A worker that still says nothing this much later is taken for lost, without proof: its requests are placed again.
    pub lost_after_ns: Nanos,
    /// A worker that hears nothing from the cluster for this long ends everything and introduces itself again.
    pub cluster_silence_ns: Nanos,
    /// A request that waits for a place for this long, since it was handed in or lost its last one, ends.
    pub queue_timeout_ns: Nanos,
    /// A request that fails this often ends.
    pub max_attempts: u32,
    /// Requests that may wait for a place; one more is refused.
    pub max_queue: u32,
    /// Outputs a request is expected to produce when its own limit is higher.
    pub expected_output_tokens: u32,
    /// A decode worker that refused a reservation is asked again after this long, unless it reports room before.
    pub retry_after_refusal_ns: Nanos,
}

impl ClusterConfig {
    /// Everything at its default.
    pub fn new(epoch: Epoch) -> Self {
        Self {
            epoch,
            lease_ns: 2 * SECOND,
            heartbeat_ns: 200 * MILLISECOND,
            worker_silence_ns: 3 * SECOND,
            lost_after_ns: 5 * SECOND,
            cluster_silence_ns: 10 * SECOND,
            queue_timeout_ns: 60 * SECOND,
            max_attempts: 5,
            max_queue: 100_000,
            expected_output_tokens: 256,
            retry_after_refusal_ns: 20 * MILLISECOND,
        }
    }

    /// Every value makes sense alone and beside the others.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let at_least_1 = [
            ("epoch", self.epoch.0),
            ("lease_ns", self.lease_ns),
            ("heartbeat_ns", self.heartbeat_ns),
            ("lost_after_ns", self.lost_after_ns),
            ("queue_timeout_ns", self.queue_timeout_ns),
            ("max_attempts", self.max_attempts.into()),
            ("max_queue", self.max_queue.into()),
            ("expected_output_tokens", self.expected_output_tokens.into()),
            ("retry_after_refusal_ns", self.retry_after_refusal_ns),
        ];
        for (field, value) in at_least_1 {
            if value == 0 {
                return Err(ConfigError { field, value, needs: "at least 1".into() });
            }
        }
        let longer = [
            ("worker_silence_ns", self.worker_silence_ns, "heartbeat_ns", self.heartbeat_ns),
            ("cluster_silence_ns", self.cluster_silence_ns, "heartbeat_ns", self.heartbeat_ns),
        ];
        for (field, value, than, bound) in longer {
            // One late or lost heartbeat must not look like silence.
            if value < bound.saturating_mul(2) {
                return Err(ConfigError { field, value, needs: format!("at least twice {than} ({bound})") });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_field_and_value() {
        let text = |change: fn(&mut ClusterConfig)| {
            let mut config = ClusterConfig::new(Epoch(1));
            change(&mut config);
            config.validate().unwrap_err().to_string()
        };
        assert_eq!(ClusterConfig::new(Epoch(1)).validate(), Ok(()));
        assert_eq!(text(|c| c.epoch = Epoch(0)), "epoch is 0, needs at least 1");
        assert_eq!(text(|c| c.max_attempts = 0), "max_attempts is 0, needs at least 1");
        assert_eq!(
            text(|c| c.worker_silence_ns = c.heartbeat_ns),
            "worker_silence_ns is 200000000, needs at least twice heartbeat_ns (200000000)"
        );
    }
}
