//! Doubly linked rings threaded through one array of links: the only list of this module.
//!
//! The elements are the indices `0..len`; each is in at most one ring. A ring has neither head nor tail of its own, so
//! inserting and removing are free of special cases: the free list adds a sentinel element, a prefix node remembers one
//! of its blocks.

/// No element.
pub(super) const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u32,
    next: u32,
}

const UNLINKED: Link = Link { prev: NIL, next: NIL };

/// Links of the elements `0..len`, in any number of rings.
#[derive(Clone, Debug)]
pub(super) struct Rings {
    links: Vec<Link>,
}

impl Rings {
    /// `len` elements in no ring.
    pub(super) fn new(len: u32) -> Self {
        Self { links: vec![UNLINKED; len as usize] }
    }

    /// Whether `x` is in a ring.
    #[inline]
    pub(super) fn is_linked(&self, x: u32) -> bool {
        self.links[x as usize].next != NIL
    }

    /// The element after `x`; `x` itself if it is alone, [`NIL`] if it is in no ring.
    #[inline]
    pub(super) fn next(&self, x: u32) -> u32 {
        self.links[x as usize].next
    }

    /// The element before `x`, likewise.
    #[inline]
    pub(super) fn prev(&self, x: u32) -> u32 {
        self.links[x as usize].prev
    }

    /// Makes a new ring of `x` alone.
    #[inline]
    pub(super) fn start(&mut self, x: u32) {
        debug_assert!(!self.is_linked(x));
        self.links[x as usize] = Link { prev: x, next: x };
    }

    /// Puts `x` into the ring of `at`, just before it.
    #[inline]
    pub(super) fn insert_before(&mut self, at: u32, x: u32) {
        debug_assert!(self.is_linked(at) && !self.is_linked(x));
        let prev = self.links[at as usize].prev;
        self.links[x as usize] = Link { prev, next: at };
        self.links[prev as usize].next = x;
        self.links[at as usize].prev = x;
    }

    /// Takes `x` out of its ring.
    #[inline]
    pub(super) fn remove(&mut self, x: u32) {
        debug_assert!(self.is_linked(x));
        let Link { prev, next } = std::mem::replace(&mut self.links[x as usize], UNLINKED);
        // Alone, `x` is its own neighbour and these two would link it again.
        if next != x {
            self.links[prev as usize].next = next;
            self.links[next as usize].prev = prev;
        }
    }

    /// The ring from `first` on, forward. Ends after `len` elements even where the links are broken, so that a check can
    /// walk a corrupt ring.
    pub(super) fn iter(&self, first: u32) -> impl Iterator<Item = u32> + '_ {
        let successor = move |&x: &u32| Some(self.next(x)).filter(|&next| next != first && next != NIL);
        std::iter::successors(Some(first).filter(|&first| first != NIL), successor).take(self.links.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_keep_their_order_and_forget_removed_elements() {
        let mut rings = Rings::new(5);
        rings.start(0);
        for x in 1..4 {
            rings.insert_before(0, x);
        }
        assert_eq!(rings.iter(0).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(rings.iter(2).collect::<Vec<_>>(), [2, 3, 0, 1]);
        rings.remove(2);
        assert_eq!((rings.next(1), rings.prev(3), rings.is_linked(2)), (3, 1, false));
        for x in [1, 0, 3] {
            assert!(rings.is_linked(x));
            rings.remove(x);
        }
        assert!((0..5).all(|x| !rings.is_linked(x)));
    }

    #[test]
    fn a_single_element_is_its_own_neighbour() {
        let mut rings = Rings::new(1);
        rings.start(0);
        assert_eq!((rings.next(0), rings.prev(0)), (0, 0));
        assert_eq!(rings.iter(0).count(), 1);
        assert_eq!(rings.iter(NIL).count(), 0);
    }
}
