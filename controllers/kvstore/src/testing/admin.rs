//! What an administrator does to an etcd, whoever has started it; for that there is no `etcdctl` here.

use crate::client::{Client, Settings};
use crate::keys::range_end;
use crate::messages::{Done, LeaseRequest, LeaseResponse, StatusRequest, StatusResponse};

use super::options;

const STATUS: &str = "/etcdserverpb.Maintenance/Status";
/// What role `remote` may read.
const REMOTE: [&str; 4] =
    ["cilium/.heartbeat", "cilium/state/", "cilium/cluster-config/", "cilium/synced/"];
/// The kind of an alarm, and what to do about it.
const NO_SPACE: i32 = 1;
const DEACTIVATE: i32 = 2;

/// A client with all rights and without a rate, of the etcd that this file names.
///
/// # Panics
/// If the file makes no sense.
pub fn client(config: &std::path::Path) -> Client {
    Client::new(&Settings::new(options(config)), None).expect("a client")
}

/// Makes the users that a cluster mesh has, and lets nobody else in.
///
/// # Panics
/// If that is not possible.
pub async fn enable_users(client: &Client) {
    let name = |name: &str| Named { name: name.into() };
    let user = |name: &str| User {
        name: name.into(),
        password: String::new(),
        options: Some(UserOptions { no_password: true }),
    };
    let grant = |user: &str, role: &str| Pair { one: user.into(), two: role.into() };
    run(client, "/etcdserverpb.Auth/RoleAdd", &name("remote")).await;
    for prefix in REMOTE {
        may_read(client, "remote", prefix).await;
    }
    for (who, role) in [("root", "root"), ("admin-east", "root"), ("remote", "remote")] {
        run(client, "/etcdserverpb.Auth/UserAdd", &user(who)).await;
        run(client, "/etcdserverpb.Auth/UserGrantRole", &grant(who, role)).await;
    }
    run(client, "/etcdserverpb.Auth/AuthEnable", &Nothing {}).await;
}

/// A user of passwords: its name, its password, and the prefix that it may read; nothing for everything.
pub type PasswordUser<'a> = (&'a str, &'a str, Option<&'a str>);

/// Makes these users, each with a role of its name, and lets nobody else in. One must be `root`.
///
/// # Panics
/// If that is not possible.
pub async fn enable_passwords(client: &Client, users: &[PasswordUser<'_>]) {
    for (name, password, prefix) in users {
        let options = Some(UserOptions { no_password: false });
        let user = User { name: (*name).into(), password: (*password).into(), options };
        run(client, "/etcdserverpb.Auth/UserAdd", &user).await;
        let role = if let Some(prefix) = prefix {
            run(client, "/etcdserverpb.Auth/RoleAdd", &Named { name: (*name).into() }).await;
            may_read(client, name, prefix).await;
            *name
        } else {
            "root"
        };
        let pair = Pair { one: (*name).into(), two: role.into() };
        run(client, "/etcdserverpb.Auth/UserGrantRole", &pair).await;
    }
    run(client, "/etcdserverpb.Auth/AuthEnable", &Nothing {}).await;
}

/// Ends every token of a user, by giving it its password again.
///
/// # Panics
/// If that is not possible.
pub async fn end_tokens(client: &Client, name: &str, password: &str) {
    let user = User { name: name.into(), password: password.into(), options: None };
    run(client, "/etcdserverpb.Auth/UserChangePassword", &user).await;
}

/// Lets a role read what begins with a prefix.
///
/// # Panics
/// If that is not possible.
pub async fn may_read(client: &Client, role: &str, prefix: &str) {
    let permission = Permission { kind: 0, key: prefix.into(), range_end: range_end(prefix) };
    let granted = RolePermission { name: role.into(), permission: Some(permission) };
    run(client, "/etcdserverpb.Auth/RoleGrantPermission", &granted).await;
}

/// Whether the only member that `member` is a client of leads.
pub async fn leads(member: &Client) -> bool {
    let status: Result<StatusResponse, _> =
        member.0.connection.unary(0, STATUS, StatusRequest {}).await;
    status.is_ok_and(|status| {
        status.header.as_ref().is_some_and(|header| header.member_id == status.leader)
    })
}

/// How many seconds a lease lives still, if it isn't renewed; less than 0 for one that is lost.
///
/// # Panics
/// If etcd doesn't answer.
pub async fn remaining(client: &Client, lease: i64) -> i64 {
    const LOOK: &str = "/etcdserverpb.Lease/LeaseTimeToLive";
    let connection = &client.0.connection;
    let answer: Result<LeaseResponse, _> =
        connection.ask("look at", "lease", LOOK, &LeaseRequest { id: lease }).await;
    answer.expect("look at a lease").ttl
}

/// Gives back the space of what was compacted, on each of the members that these are clients of; then
/// takes the alarms off.
///
/// # Panics
/// If that is not possible.
pub async fn make_room(members: &[Client]) {
    for member in members {
        run(member, "/etcdserverpb.Maintenance/Defragment", &Nothing {}).await;
    }
    for member in members {
        let status: StatusResponse =
            member.0.connection.unary(0, STATUS, StatusRequest {}).await.expect("a status");
        let alarm = Alarm {
            action: DEACTIVATE,
            member: status.header.unwrap_or_default().member_id,
            kind: NO_SPACE,
        };
        run(member, "/etcdserverpb.Maintenance/Alarm", &alarm).await;
    }
}

async fn run<Q: prost::Message + Clone + 'static>(
    client: &Client,
    method: &'static str,
    request: &Q,
) {
    let answer: Result<Done, _> = client.ask(("set", "test"), method, method, request).await;
    answer.expect("an administrator's request");
}

#[derive(Clone, PartialEq, prost::Message)]
struct Nothing {}

#[derive(Clone, PartialEq, prost::Message)]
struct Alarm {
    #[prost(int32, tag = "1")]
    action: i32,
    #[prost(uint64, tag = "2")]
    member: u64,
    #[prost(int32, tag = "3")]
    kind: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Named {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Pair {
    #[prost(string, tag = "1")]
    one: String,
    #[prost(string, tag = "2")]
    two: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct User {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    password: String,
    #[prost(message, optional, tag = "3")]
    options: Option<UserOptions>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct UserOptions {
    #[prost(bool, tag = "1")]
    no_password: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RolePermission {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    permission: Option<Permission>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Permission {
    /// 0 read, 1 write, 2 both.
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    range_end: Vec<u8>,
}
