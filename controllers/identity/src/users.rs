//! Decides whether an identity is in use: whether anybody who was heard of lists it.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Deref;

use cilia_crds::NumericIdentity;

/// Who uses which identities, as told last; about 60 bytes an endpoint beside its name, the name's key of 32 included.
/// `K` names users: endpoints, slices.
#[derive(Debug)]
pub struct Users<K> {
    uses: HashMap<K, Few>,
    /// By how many; nothing of identities without.
    counts: HashMap<NumericIdentity, u32>,
}

/// Identities that one user lists: of an endpoint one, of a slice up to some hundred. 16 bytes.
#[derive(Debug)]
pub(crate) enum Few {
    One(NumericIdentity),
    Many(Box<[NumericIdentity]>),
}

impl Few {
    pub(crate) fn new(identities: Vec<NumericIdentity>) -> Self {
        match identities.as_slice() {
            [one] => Self::One(*one),
            _ => Self::Many(identities.into_boxed_slice()),
        }
    }
}

impl Deref for Few {
    type Target = [NumericIdentity];

    fn deref(&self) -> &[NumericIdentity] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

impl<K> Default for Users<K> {
    fn default() -> Self {
        Self { uses: HashMap::new(), counts: HashMap::new() }
    }
}

impl<K: Eq + Hash> Users<K> {
    /// This one uses these identities now, and no others.
    pub fn tell(&mut self, who: K, mut identities: Vec<NumericIdentity>) {
        identities.sort_unstable();
        identities.dedup();
        for identity in &identities {
            *self.counts.entry(*identity).or_default() += 1;
        }
        let before = if identities.is_empty() {
            self.uses.remove(&who)
        } else {
            self.uses.insert(who, Few::new(identities))
        };
        for identity in before.as_deref().unwrap_or_default() {
            if let Some(count) = self.counts.get_mut(identity) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(identity);
                }
            }
        }
    }

    /// Whether anybody uses the identity.
    pub fn use_it(&self, identity: NumericIdentity) -> bool {
        self.counts.contains_key(&identity)
    }

    /// Every identity that is in use.
    pub fn used(&self) -> impl Iterator<Item = NumericIdentity> {
        self.counts.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use cilia_crds::NumericIdentity;

    use super::Users;

    fn ids(numbers: &[u32]) -> Vec<NumericIdentity> {
        numbers.iter().copied().map(NumericIdentity).collect()
    }

    fn used(users: &Users<&str>) -> Vec<NumericIdentity> {
        let mut used: Vec<_> = users.used().collect();
        used.sort_unstable();
        used
    }

    #[test]
    fn every_user_counts_until_it_is_gone() {
        // IDGC-02.
        let mut users = Users::default();
        assert_eq!(used(&users), []);
        users.tell("cesA", ids(&[1, 2, 3, 4, 5, 5]));
        assert_eq!(used(&users), ids(&[1, 2, 3, 4, 5]));
        users.tell("cesB", ids(&[10, 20, 30, 40, 50]));
        assert_eq!(used(&users).len(), 10);
        users.tell("cep", ids(&[5]));
        users.tell("cesA", ids(&[4]));
        assert_eq!(used(&users), ids(&[4, 5, 10, 20, 30, 40, 50]));
        users.tell("cep", ids(&[4]));
        users.tell("cesB", vec![]);
        users.tell("cesA", vec![]);
        assert!(users.use_it(NumericIdentity(4)) && !users.use_it(NumericIdentity(5)));
        users.tell("cep", vec![]);
        assert!(users.uses.is_empty() && users.counts.is_empty());
    }
}
