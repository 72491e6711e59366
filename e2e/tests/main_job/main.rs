//! The main job on a real cluster: from a pod's birth to the packet that policy lets through.
//!
//! `cargo test -p cilia-e2e --test main_job -- policy` runs the scenarios with "policy" in their
//! names; `CILIA_E2E_KEEP=1` keeps the cluster for the next run.

use std::process::ExitCode;

use cilia_e2e::scenario::runner::{Scenario, run};

mod agent_restart;
mod api_server_away;
mod bad_input;
mod churn;
mod command_line;
mod conformance;
mod crowd;
mod edits;
mod flips;
mod guarded_nodes;
mod installed;
mod kvstore;
mod operator_restart;
mod policy;
mod pools;
mod reach;
mod reboot;

/// Whether what takes longer is wanted, too: what measures by waiting, or restarts nodes.
fn asked_for() -> bool {
    let asked =
        std::env::var_os("CILIA_LIVE").is_some_and(|value| !value.is_empty() && value != "0");
    if !asked {
        println!("  left out: `make live` has it");
    }
    asked
}

/// Names of scenarios and the functions that perform them, in the order in which they run.
macro_rules! scenarios {
    ($($module:ident :: $function:ident),+ $(,)?) => {
        &[$(Scenario {
            name: concat!(stringify!($module), "::", stringify!($function)),
            run: |stage| Box::pin($module::$function(stage)),
        }),+]
    };
}

#[tokio::main]
async fn main() -> ExitCode {
    let scenarios: &[Scenario] = scenarios![
        installed::nodes_are_ready,
        installed::addresses_come_from_the_nodes_ranges,
        reach::pods_reach_each_other,
        reach::services_and_names_are_reached,
        reach::the_vni_is_the_senders_identity,
        policy::deny_cuts_and_allow_restores,
        policy::replies_pass_both_ways_denied,
        conformance::kubernetes_finds_its_policies_enforced,
        crowd::a_hundred_pods_come_and_go,
        churn::nothing_is_left_and_nothing_lost,
        pools::ranges_follow_the_pods,
        edits::count_within_a_second,
        edits::lose_nothing_that_is_allowed,
        flips::lose_nothing_and_let_nothing_through,
        guarded_nodes::entities_are_told_apart,
        guarded_nodes::policies_of_nodes_cut_and_keep,
        command_line::every_command_speaks_every_format,
        command_line::a_dump_holds_no_secrets,
        command_line::a_node_has_settings_of_its_own,
        command_line::events_go_on_when_an_agent_ends,
        command_line::an_endpoint_has_labels_of_its_own,
        agent_restart::a_killed_agent_loses_no_packet,
        agent_restart::a_restart_at_rest_writes_nothing,
        reboot::a_node_comes_back_as_it_was,
        operator_restart::another_leads_after_a_clean_stop,
        operator_restart::another_leads_after_a_kill,
        operator_restart::a_restart_at_rest_writes_nothing,
        bad_input::a_malformed_plugin_configuration_is_named,
        bad_input::a_wrong_cidr_is_named,
        bad_input::an_impossible_policy_is_named,
        api_server_away::traffic_flows_and_all_converges,
        kvstore::modes_change_under_traffic,
        kvstore::faults_of_etcd_lose_no_packet,
        kvstore::a_frozen_agent_cuts_nobody_off,
        kvstore::without_quorum_kubernetes_is_enough,
    ];
    run("e2e", scenarios).await
}
