//! Decides which number to try for a label set that has none.
//!
//! A label set prefers a few numbers of its own, the same everywhere: agents that need a number for the same
//! labels at the same moment try the same one, and only one of them gets to make it. Different sets spread evenly
//! over the space. Where all of those are taken the draw is random, uniform over what is free, so that a full
//! space is found full and not guessed so. One bit per number: 8 KiB.

use std::ops::RangeInclusive;

use cilia_crds::{Labels, NumericIdentity};
use rand::{Rng, RngExt};

use crate::{Space, digest};

const WORD: u32 = u64::BITS;
/// Numbers that a label set prefers. In a space that is half full one in 256 sets finds all of them taken.
const PREFERRED: u64 = 8;

/// Which numbers of a [`Space`] are taken, as far as is known.
#[derive(Debug, Clone)]
pub struct Pool {
    first: u32,
    size: u32,
    /// Bit `n` of all words: number `first + n` is taken. Bits past the end are taken.
    taken: Vec<u64>,
    free: u32,
}

impl Pool {
    /// All numbers of the space, free.
    ///
    /// Seed it with every existing identity before the first draw.
    pub fn new(space: Space) -> Self {
        Self::of(space.range())
    }

    pub(crate) fn of(range: RangeInclusive<u32>) -> Self {
        let first = *range.start();
        let size = range.end() - first + 1;
        let mut taken = vec![0; size.div_ceil(WORD) as usize];
        if !size.is_multiple_of(WORD) {
            taken[(size / WORD) as usize] = u64::MAX << (size % WORD);
        }
        Self { first, size, taken, free: size }
    }

    /// Marks a number as taken; `false` if it was, or is not of this space.
    pub fn take(&mut self, number: NumericIdentity) -> bool {
        let Some((word, bit)) = self.position(number) else {
            return false;
        };
        let was_free = self.taken[word] & bit == 0;
        self.taken[word] |= bit;
        self.free -= u32::from(was_free);
        was_free
    }

    /// Marks a number as free; `false` if it was, or is not of this space.
    pub fn release(&mut self, number: NumericIdentity) -> bool {
        let Some((word, bit)) = self.position(number) else {
            return false;
        };
        let was_taken = self.taken[word] & bit != 0;
        self.taken[word] &= !bit;
        self.free += u32::from(was_taken);
        was_taken
    }

    /// Takes the number that these labels prefer, of those that are free; `None` when there is none.
    pub fn draw_for<R: Rng + ?Sized>(
        &mut self,
        labels: &Labels,
        rng: &mut R,
    ) -> Option<NumericIdentity> {
        let fingerprint = digest::set(labels);
        let preferred = (0..PREFERRED).find_map(|nth| {
            let spread = digest::mixed(fingerprint.wrapping_add(nth));
            let offset = (u128::from(spread) * u128::from(self.size)) >> u64::BITS;
            let number = NumericIdentity(self.first + u32::try_from(offset).ok()?);
            self.take(number).then_some(number)
        });
        preferred.or_else(|| self.draw(rng))
    }

    /// Takes a free number, each being as likely; `None` when there is none.
    pub fn draw<R: Rng + ?Sized>(&mut self, rng: &mut R) -> Option<NumericIdentity> {
        if self.free == 0 {
            return None;
        }
        let mut nth = rng.random_range(0..self.free);
        let (index, word) = self.taken.iter().enumerate().find(|(_, word)| {
            let free = word.count_zeros();
            if nth < free {
                return true;
            }
            nth -= free;
            false
        })?;
        let bit = (0..WORD).filter(|bit| word & (1 << bit) == 0).nth(nth as usize)?;
        let number = NumericIdentity(self.first + u32::try_from(index).ok()? * WORD + bit);
        self.take(number);
        Some(number)
    }

    /// How many numbers are free.
    pub fn free(&self) -> u32 {
        self.free
    }

    /// How many numbers there are.
    pub fn size(&self) -> u32 {
        self.size
    }

    fn position(&self, number: NumericIdentity) -> Option<(usize, u64)> {
        let offset = number.0.checked_sub(self.first).filter(|offset| *offset < self.size)?;
        Some(((offset / WORD) as usize, 1 << (offset % WORD)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use cilia_crds::{Labels, NumericIdentity};
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::Pool;
    use crate::Space;

    #[test]
    fn draws_every_number_once() {
        let space = Space::new(0, 511).expect("allowed");
        let mut pool = Pool::new(space);
        let mut rng = StdRng::seed_from_u64(1);
        pool.take(NumericIdentity(300));
        let mut seen = BTreeSet::new();
        while let Some(number) = pool.draw(&mut rng) {
            assert!(space.contains(number) && seen.insert(number), "{number}");
        }
        assert_eq!(seen.len(), space.range().count() - 1);
        assert!(!seen.contains(&NumericIdentity(300)));
        assert!(pool.release(NumericIdentity(300)));
        assert_eq!(pool.draw(&mut rng), Some(NumericIdentity(300)));
    }

    #[test]
    fn a_label_set_prefers_the_same_numbers_everywhere() {
        let labels = |app: u32| {
            let mut labels = Labels::new();
            labels.insert("k8s", "app", &app.to_string());
            labels
        };
        let space = Space::new(0, 511).expect("allowed");
        let (mut one, mut other) = (Pool::new(space), Pool::new(space));
        let mut rngs = [1, 2].map(StdRng::seed_from_u64);
        for app in 0..one.size() / 2 {
            let drawn = one.draw_for(&labels(app), &mut rngs[0]).expect("room");
            let same = other.draw_for(&labels(app), &mut rngs[1]).expect("room");
            if drawn != same {
                // Both found all that it prefers taken.
                other.take(drawn);
                one.take(same);
            }
        }
        let mut differ = Pool::new(space);
        let first = differ.draw_for(&labels(1), &mut rngs[0]).expect("room");
        assert_ne!(
            differ.draw_for(&labels(1), &mut rngs[0]),
            Some(first),
            "the next that it prefers"
        );
        while one.draw_for(&labels(1), &mut rngs[0]).is_some() {}
        assert_eq!(one.free(), 0, "whatever it prefers, none is left over");
    }

    #[test]
    fn agrees_with_a_set() {
        let space = Space::new(2, 255).expect("allowed");
        let first = *space.range().start();
        let mut pool = Pool::new(space);
        let mut model = BTreeSet::new();
        let mut rng = StdRng::seed_from_u64(2);
        for _ in 0..20_000 {
            let number = NumericIdentity(first - 2 + rng.random_range(0..100));
            match rng.random_range(0..3) {
                0 if space.contains(number) => assert_eq!(pool.take(number), model.insert(number)),
                1 => assert_eq!(pool.release(number), model.remove(&number)),
                2 => assert!(pool.draw(&mut rng).is_none_or(|number| model.insert(number))),
                _ => assert!(!pool.take(number)),
            }
            assert_eq!((pool.size() - pool.free()) as usize, model.len());
        }
    }
}
