//! What must always be true of a cluster between two calls.

use super::registry::Health;
use super::state::{Entry, State};
use super::{Cluster, Timer};

pub(super) fn check(cluster: &Cluster) -> Result<(), String> {
    cluster.balancer.check()?;
    let mut timers = workers(cluster)?;
    let (mut queued, mut placed) = (0, 0);
    // In order of arrival, so that the same fault always gives the same text.
    let mut entries: Vec<&Entry> = cluster.requests.values().collect();
    entries.sort_unstable_by_key(|entry| entry.order);
    for entry in entries {
        request(cluster, entry).map_err(|text| format!("request {}: {text}; {:?}", entry.request.id, entry.view()))?;
        match entry.state {
            State::Queued { .. } => queued += 1,
            _ => placed += 1,
        }
        timers += usize::from(matches!(entry.state, State::Queued { .. } | State::Reserving { .. }));
    }
    if queued != cluster.queue.len() {
        return Err(format!("{queued} requests are queued, the queue has {}", cluster.queue.len()));
    }
    if placed != cluster.balancer.num_placed() {
        return Err(format!("{placed} requests are placed, {} are booked", cluster.balancer.num_placed()));
    }
    if timers != cluster.timers.len() {
        return Err(format!("{timers} timers are needed, {} are armed", cluster.timers.len()));
    }
    let (submitted, finished) = (cluster.stats.submitted, cluster.stats.finished);
    if submitted - finished != cluster.requests.len() as u64 {
        return Err(format!("{submitted} submitted, {finished} finished, {} there", cluster.requests.len()));
    }
    Ok(())
}

/// Checks the workers; returns the number of timers they need.
fn workers(cluster: &Cluster) -> Result<usize, String> {
    let mut timers = 0;
    let mut loads = cluster.balancer.loads().into_iter();
    for worker in cluster.registry.iter() {
        let peer = worker.peer;
        let load = loads.next().filter(|load| load.worker == peer.worker).ok_or(format!("{peer} has no account"))?;
        if load.up != (worker.health == Health::Up) || load.role != worker.hello.role {
            return Err(format!("{peer}: health is {}, account {load:?}", worker.health.as_str()));
        }
        if cluster.registry.is_over(peer) {
            return Err(format!("{peer} is registered and over"));
        }
        if worker.health != Health::Lost {
            timers += 1;
            if !cluster.timers.is_armed(worker.silence_at, Timer::Silence(peer.worker)) {
                return Err(format!("{peer}: its silence would not be noticed"));
            }
            if !worker.owed_aborts.is_empty() {
                return Err(format!("{peer} is {} and owed {:?}", worker.health.as_str(), worker.owed_aborts));
            }
        }
        if let Some(at) = worker.refused_until {
            timers += 1;
            if !cluster.timers.is_armed(at, Timer::Retry(peer.worker)) {
                return Err(format!("{peer}: would never be asked again"));
            }
        }
    }
    match loads.next() {
        Some(load) => Err(format!("w{} has an account and is not registered", load.worker)),
        None => Ok(timers),
    }
}

fn request(cluster: &Cluster, entry: &Entry) -> Result<(), String> {
    let id = entry.request.id;
    let (prefill, decode) = entry.state.workers();
    for peer in prefill.into_iter().chain(decode) {
        let worker = cluster.registry.current(peer).ok_or(format!("names {peer}, which is not registered"))?;
        if worker.health == Health::Lost {
            return Err(format!("names {peer}, which is lost"));
        }
    }
    let waits = matches!(entry.state, State::Queued { .. });
    if waits != (cluster.queue.get(entry.order) == Some(id)) {
        return Err("state and queue disagree".into());
    }
    if waits && !cluster.timers.is_armed(entry.wait_until, Timer::Queue(id)) {
        return Err("would wait for ever".into());
    }
    if waits && !entry.outputs.is_empty() {
        return Err("waits with outputs that its next try would not know".into());
    }
    let until = match entry.state {
        State::Reserving { until, .. } => Some(until),
        _ => None,
    };
    if until.is_some_and(|until| !cluster.timers.is_armed(until, Timer::Reserve(id))) {
        return Err("an unanswered reservation would not be noticed".into());
    }
    // The prompt is booked for prefill until the first token of the try.
    let prefilling = match entry.state {
        State::Reserving { .. } | State::Prefilling { .. } => true,
        State::Running { .. } => entry.outputs.is_empty(),
        _ => false,
    };
    let expected = (prefill.filter(|_| prefilling).map(|peer| peer.worker), decode.map(|peer| peer.worker));
    let booked = cluster.balancer.placement(id);
    if booked != expected {
        return Err(format!("should be booked on {expected:?}, is on {booked:?}"));
    }
    if entry.next_index() >= entry.request.max_tokens && waits {
        return Err("waits though it is complete".into());
    }
    Ok(())
}
