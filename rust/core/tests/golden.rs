//! Golden tests: events in as text, actions out as text. `UPDATE_GOLDEN=1 cargo test --test golden` rewrites the files;
//! read the difference before you keep it.

#[path = "golden/cluster.rs"]
mod cluster;
#[path = "golden/runner.rs"]
mod runner;

#[test]
fn cluster() {
    runner::run("cluster", cluster::ClusterMachine::default);
}
