//! Makes names of slices: `ces-` + nine + `-` + five characters without vowels and look-alikes.

use rand::{Rng, RngExt};

const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxyz2456789";

/// A name; drawing again on a collision is the caller's.
pub(crate) fn draw<R: Rng + ?Sized>(rng: &mut R) -> String {
    let mut name = String::from("ces-");
    for position in 0..14 {
        if position == 9 {
            name.push('-');
        }
        name.push(char::from(ALPHABET[rng.random_range(0..ALPHABET.len())]));
    }
    name
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::{ALPHABET, draw};

    #[test]
    fn looks_like_cilium_s() {
        let mut rng = StdRng::seed_from_u64(1);
        for _ in 0..100 {
            let name = draw(&mut rng);
            let parts: Vec<&str> = name.split('-').collect();
            assert_eq!((parts[0], parts[1].len(), parts[2].len()), ("ces", 9, 5), "{name}");
            assert!(parts[1..].concat().bytes().all(|byte| ALPHABET.contains(&byte)), "{name}");
        }
    }
}
