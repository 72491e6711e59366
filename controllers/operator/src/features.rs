//! Says which of Cilium's operator features are on: those that are built, and switched on.

use cilia_runtime::config::Config;
use cilia_runtime::metrics::Metrics;
use prometheus_client::metrics::gauge::Gauge;

use crate::config::is_built;

/// The metrics' names between `feature_adv_connect_and_lb_` and `_enabled`, and the flags that decide.
const FEATURES: [(&str, &str); 5] = [
    ("gateway_api", "enable-gateway-api"),
    ("ingress_controller", "enable-ingress-controller"),
    ("l7_aware_traffic_management", "loadbalancer-l7"),
    ("lb_ipam", "enable-lb-ipam"),
    ("node_ipam", "enable-node-ipam"),
];

/// Registers a gauge for each.
pub(crate) fn register(config: &Config, metrics: &Metrics) {
    for (feature, flag) in FEATURES {
        let on = if flag == "loadbalancer-l7" {
            config.string(flag) == "envoy"
        } else {
            config.bool(flag)
        };
        let gauge: Gauge = Gauge::default();
        gauge.set(i64::from(on && is_built(flag)));
        let name = format!("feature_adv_connect_and_lb_{feature}_enabled");
        metrics.register(&name, "Whether the feature is on", gauge);
    }
}

#[cfg(test)]
mod tests {
    use cilia_runtime::config::Config;
    use cilia_runtime::metrics::Metrics;

    #[test]
    fn a_feature_that_is_not_built_is_not_on() {
        let config = Config::load(crate::config::flags(), ["--enable-gateway-api".to_owned()], []);
        let metrics = Metrics::new("cilium_operator");
        super::register(&config.expect("valid settings"), &metrics);
        let text = metrics.render();
        let name = "cilium_operator_feature_adv_connect_and_lb_gateway_api_enabled";
        let want = i32::from(crate::config::is_built("enable-gateway-api"));
        assert!(text.lines().any(|line| line == format!("{name} {want}")), "{text}");
        assert_eq!(text.matches("\ncilium_operator_feature_").count(), 5, "{text}");
    }
}
