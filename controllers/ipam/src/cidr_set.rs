//! Decides which blocks of one cluster CIDR are in use, and which comes next.
//!
//! One bit a block. Blocks go round: the next is looked for behind the last one handed out.

use std::ops::Range;

use ipnet::IpNet;

use crate::bits;
use crate::family::Family;

const WORD: u32 = u64::BITS;

/// A cluster CIDR, cut into blocks of the size a node gets.
#[derive(Debug, Clone)]
pub struct CidrSet {
    cidr: IpNet,
    node_mask: u8,
    /// Bit `n` of all words: block `n` is in use.
    used: Vec<u64>,
    in_use: u32,
    /// The block behind the last one handed out.
    next: u32,
}

impl CidrSet {
    /// A set of which nothing is in use.
    ///
    /// The caller has seen to it that `node_mask` is at least the CIDR's and at most 24 longer.
    pub(crate) fn new(cidr: IpNet, node_mask: u8) -> Self {
        let cidr = cidr.trunc();
        let words = (1u32 << (node_mask - cidr.prefix_len())).div_ceil(WORD);
        Self { cidr, node_mask, used: vec![0; words as usize], in_use: 0, next: 0 }
    }

    /// The cluster CIDR.
    pub fn cidr(&self) -> IpNet {
        self.cidr
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> u32 {
        1 << (self.node_mask - self.cidr.prefix_len())
    }

    /// How many blocks are not in use.
    pub fn free(&self) -> u32 {
        self.blocks() - self.in_use
    }

    /// Takes the next block, going round; `None` when all are in use.
    pub fn allocate(&mut self) -> Option<IpNet> {
        if self.free() == 0 {
            return None;
        }
        let blocks = self.blocks();
        let block = (self.next..blocks).chain(0..self.next).find(|block| !self.is_used(*block))?;
        self.set(block..block + 1, true);
        self.next = (block + 1) % blocks;
        Some(self.block(block))
    }

    /// Whether the CIDR has anything to do with this set: either contains the other.
    pub fn in_range(&self, cidr: IpNet) -> bool {
        bits::overlap(self.cidr, cidr)
    }

    /// Whether any block that the CIDR touches is in use.
    pub fn any_used(&self, cidr: IpNet) -> bool {
        self.touched(cidr).any(|block| self.is_used(block))
    }

    /// Puts every block that the CIDR touches into use.
    pub fn occupy(&mut self, cidr: IpNet) {
        self.set(self.touched(cidr), true);
    }

    /// Frees every block that the CIDR touches.
    pub fn release(&mut self, cidr: IpNet) {
        self.set(self.touched(cidr), false);
    }

    fn touched(&self, cidr: IpNet) -> Range<u32> {
        if !self.in_range(cidr) {
            return 0..0;
        }
        if cidr.prefix_len() <= self.cidr.prefix_len() {
            return 0..self.blocks();
        }
        let offset = bits::number(cidr.network()) - bits::number(self.cidr.network());
        // Fits: a block's number has at most 24 bits.
        let first = u32::try_from(offset >> self.block_bits()).unwrap_or(u32::MAX);
        let count = 1 << self.node_mask.saturating_sub(cidr.prefix_len());
        first..first + count
    }

    fn block(&self, block: u32) -> IpNet {
        let family = Family::of_net(self.cidr);
        let number = bits::number(self.cidr.network()) + (u128::from(block) << self.block_bits());
        let net = IpNet::new(bits::address(family, number), self.node_mask);
        net.unwrap_or(self.cidr)
    }

    /// How many bits of an address tell addresses of one block apart.
    fn block_bits(&self) -> u32 {
        // A block of all of IPv6 would need a shift by 128; the set would then have one block.
        u32::from(Family::of_net(self.cidr).width() - self.node_mask).min(127)
    }

    fn is_used(&self, block: u32) -> bool {
        self.used[(block / WORD) as usize] & (1 << (block % WORD)) != 0
    }

    fn set(&mut self, blocks: Range<u32>, used: bool) {
        for block in blocks {
            let (word, bit) = ((block / WORD) as usize, 1 << (block % WORD));
            let was = self.used[word] & bit != 0;
            match (was, used) {
                (false, true) => self.in_use += 1,
                (true, false) => self.in_use -= 1,
                _ => {}
            }
            self.used[word] = if used { self.used[word] | bit } else { self.used[word] & !bit };
        }
    }
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;

    use super::CidrSet;

    fn net(text: &str) -> IpNet {
        text.parse().expect("a CIDR")
    }

    #[test]
    fn goes_round() {
        let mut set = CidrSet::new(net("10.0.0.0/22"), 24);
        set.occupy(net("10.0.1.0/24"));
        assert_eq!(set.allocate(), Some(net("10.0.0.0/24")));
        assert_eq!(set.allocate(), Some(net("10.0.2.0/24")));
        set.release(net("10.0.0.0/24"));
        assert_eq!(set.allocate(), Some(net("10.0.3.0/24")), "a released block rests");
        assert_eq!(set.allocate(), Some(net("10.0.0.0/24")));
        assert_eq!(set.allocate(), None);
        assert_eq!(set.free(), 0);
    }

    #[test]
    fn covers_blocks_of_any_size() {
        let cases = [
            ("10.0.0.0/8", 4, "larger than the set"),
            ("10.0.0.0/23", 2, "two blocks"),
            ("10.0.3.128/25", 1, "half a block"),
            ("10.0.4.0/24", 0, "outside"),
            ("fd00::/64", 0, "another family"),
        ];
        for (cidr, blocks, name) in cases {
            let mut set = CidrSet::new(net("10.0.0.0/22"), 24);
            set.occupy(net(cidr));
            set.occupy(net(cidr));
            assert_eq!(set.blocks() - set.free(), blocks, "{name}");
            assert_eq!(set.any_used(net("10.0.0.0/22")), blocks > 0, "{name}");
            set.release(net(cidr));
            assert_eq!(set.free(), 4, "{name}");
        }
    }

    #[test]
    fn extreme_masks() {
        for (cidr, mask) in [("::/0", 16), ("0.0.0.0/0", 8), ("fd00::/112", 128), ("::/0", 0)] {
            let mut set = CidrSet::new(net(cidr), mask);
            let block = set.allocate().expect("free");
            assert!(net(cidr).contains(&block), "{block}");
        }
    }
}
