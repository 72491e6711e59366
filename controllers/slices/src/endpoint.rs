//! One endpoint: what is true of it, where it belongs, and where it is listed.

use crate::Millis;
use crate::content::Content;
use crate::text::Text;

pub(crate) type EndpointId = usize;
pub(crate) type SliceId = usize;

/// An endpoint that lives, or that some slice still lists.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    pub(crate) namespace: Text,
    pub(crate) name: Text,
    /// What slices should say; `None` if there is no such `CiliumEndpoint`.
    pub(crate) content: Option<Box<Content>>,
    /// Of the content.
    pub(crate) digest: u64,
    /// About how many bytes more than usual its entry has.
    pub(crate) excess: usize,
    /// It has an identity and networking: reason to give it a place.
    pub(crate) valid: bool,
    /// The slice it belongs in.
    pub(crate) home: Option<SliceId>,
    /// The slices that list it, as far as is known.
    pub(crate) seen_in: SeenIn,
    /// Since when what slices say of it is not right.
    pub(crate) waiting_since: Option<Millis>,
}

impl Endpoint {
    pub(crate) fn new(namespace: Text, name: Text) -> Self {
        Self {
            namespace,
            name,
            content: None,
            digest: 0,
            excess: 0,
            valid: false,
            home: None,
            seen_in: SeenIn::Nowhere,
            waiting_since: None,
        }
    }

    pub(crate) fn lives(&self) -> bool {
        self.content.is_some()
    }

    /// Whether it counts against the room of a slice that lists it without being its home.
    pub(crate) fn lingers_in(&self, slice: SliceId) -> bool {
        self.lives() && self.home != Some(slice)
    }
}

/// A set of slices that nearly always has one element.
#[derive(Debug, Clone, Default)]
pub(crate) enum SeenIn {
    #[default]
    Nowhere,
    One(SliceId),
    #[expect(clippy::box_collection, reason = "keeps the common case at 16 bytes")]
    Many(Box<Vec<SliceId>>),
}

impl SeenIn {
    pub(crate) fn as_slice(&self) -> &[SliceId] {
        match self {
            Self::Nowhere => &[],
            Self::One(slice) => std::slice::from_ref(slice),
            Self::Many(slices) => slices,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }

    pub(crate) fn insert(&mut self, slice: SliceId) {
        match self {
            Self::Nowhere => *self = Self::One(slice),
            Self::One(one) if *one == slice => {}
            Self::One(one) => *self = Self::Many(Box::new(vec![*one, slice])),
            Self::Many(many) if many.contains(&slice) => {}
            Self::Many(many) => many.push(slice),
        }
    }

    pub(crate) fn remove(&mut self, slice: SliceId) {
        match self {
            Self::One(one) if *one == slice => *self = Self::Nowhere,
            Self::Many(many) => {
                many.retain(|one| *one != slice);
                if let [one] = many[..] {
                    *self = Self::One(one);
                }
            }
            _ => {}
        }
    }
}
