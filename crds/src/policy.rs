//! The rules of `CiliumNetworkPolicy` and `CiliumClusterwideNetworkPolicy`.
//!
//! Lists of peers are `Option<Vec<_>>`: an absent list leaves the peers open, an empty one
//! selects nobody.

pub mod egress;
pub mod icmp;
pub mod ingress;
pub mod l7;
pub mod peer;
pub mod port;
pub mod rule;
pub mod status;

pub use egress::{EgressDenyRule, EgressRule};
pub use icmp::{IcmpFamily, IcmpField, IcmpRule};
pub use ingress::{IngressDenyRule, IngressRule};
pub use l7::{HeaderMatch, HttpRule, KafkaRole, KafkaRule, L7Rules, MismatchAction};
pub use peer::{
    Authentication, AuthenticationMode, AwsGroup, CidrRule, Entity, FqdnSelector, K8sServiceName,
    K8sServiceSelector, PeerGroup, ServiceRef,
};
pub use port::{
    EnvoyConfigKind, EnvoyConfigRef, L4Protocol, Listener, PortDenyRule, PortProtocol, PortRule,
    Secret, TlsContext,
};
pub use rule::{DefaultDeny, PolicyLog, PolicyRule, RuleLabel};
pub use status::{DerivativePolicy, PolicyCondition, PolicyStatus};
