//! Tells an object as it was at one moment from what came later, in 32 bytes.

use kube::{Resource, ResourceExt as _};

/// The uid and the resourceVersion of an object. What API servers usually say is a UUID and a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Revision {
    Usual { uid: [u8; 16], version: u64 },
    Other(Box<(String, String)>),
}

impl Revision {
    pub(super) fn of(object: &impl Resource) -> Self {
        let uid = object.uid().unwrap_or_default();
        let version = object.resource_version().unwrap_or_default();
        let usual = uuid(&uid).zip(version.parse().ok());
        let usual = usual.map(|(uid, version)| Self::Usual { uid, version });
        let faithful = |usual: &Self| usual.uid() == uid && usual.version() == version;
        usual.filter(faithful).unwrap_or_else(|| Self::Other(Box::new((uid, version))))
    }

    pub(super) fn uid(&self) -> String {
        match self {
            Self::Usual { uid, .. } => {
                let mut text = format!("{:032x}", u128::from_be_bytes(*uid));
                for at in [8, 13, 18, 23] {
                    text.insert(at, '-');
                }
                text
            }
            Self::Other(other) => other.0.clone(),
        }
    }

    pub(super) fn version(&self) -> String {
        match self {
            Self::Usual { version, .. } => version.to_string(),
            Self::Other(other) => other.1.clone(),
        }
    }
}

fn uuid(text: &str) -> Option<[u8; 16]> {
    let digits = text.replace('-', "");
    u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use cilia_crds::CiliumIdentity;
    use kube::api::ObjectMeta;

    use super::Revision;

    #[test]
    fn says_what_it_was_told() {
        let uuid = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9";
        for (uid, version, usual) in [
            (uuid, "12345", true),
            ("00000000-0000-0000-0000-000000000000", "0", true),
            (uuid, "012", false),
            (uuid, "abc", false),
            ("0A1B2C3D-4E5F-6071-8293-A4B5C6D7E8F9", "1", false),
            ("u", "1", false),
            ("", "", false),
        ] {
            let metadata = ObjectMeta {
                uid: Some(uid.to_owned()),
                resource_version: Some(version.to_owned()),
                ..ObjectMeta::default()
            };
            let object = CiliumIdentity { metadata, ..CiliumIdentity::default() };
            let revision = Revision::of(&object);
            assert_eq!((&*revision.uid(), &*revision.version()), (uid, version));
            assert_eq!(matches!(revision, Revision::Usual { .. }), usual, "{uid} {version}");
        }
        assert_eq!(size_of::<Revision>(), 32);
    }
}
