//! Decides which number to try for a label set that has none.
//!
//! The draw is random, so that agents that draw at the same time seldom collide, and uniform over
//! what is free, so that a full space is found full and not guessed so. One bit per number: 8 KiB.

use cilia_crds::NumericIdentity;
use rand::{Rng, RngExt};

use crate::Space;

const WORD: u32 = u64::BITS;

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
        let range = space.range();
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

    use cilia_crds::NumericIdentity;
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
