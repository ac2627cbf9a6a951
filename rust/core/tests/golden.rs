//! Golden tests: events in as text, actions out as text. `UPDATE_GOLDEN=1 cargo test --test golden` rewrites the files;
//! read the difference before you keep it.

#[path = "golden/cluster.rs"]
mod cluster;
#[path = "golden/runner.rs"]
mod runner;
#[path = "golden/scheduler.rs"]
mod scheduler;
#[path = "golden/words.rs"]
mod words;
#[path = "golden/worker.rs"]
mod worker;

#[test]
fn cluster() {
    runner::run("cluster", cluster::ClusterMachine::default);
}

#[test]
fn scheduler() {
    runner::run("scheduler", scheduler::SchedulerMachine::default);
}

#[test]
fn worker() {
    runner::run("worker", worker::WorkersMachine::default);
}
