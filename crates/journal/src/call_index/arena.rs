//! Values with stable numbers. Storage grows by chunks, because a vector that doubles would waste up to half of it.

/// The number of a value in an [`Arena`]. It is used again after the value was removed.
pub type Slot = u32;

#[derive(Debug)]
pub struct Arena<T> {
    chunks: Vec<Vec<Option<T>>>,
    free: Vec<Slot>,
}

const CHUNK: usize = 256;

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), free: Vec::new() }
    }
}

impl<T> Arena<T> {
    pub fn insert(&mut self, value: T) -> Slot {
        if let Some(slot) = self.free.pop() {
            self.chunks[slot as usize / CHUNK][slot as usize % CHUNK] = Some(value);
            return slot;
        }
        if self.chunks.last().is_none_or(|last| last.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let last = self.chunks.len() - 1;
        self.chunks[last].push(Some(value));
        (last * CHUNK + self.chunks[last].len() - 1) as Slot
    }

    pub fn get(&self, slot: Slot) -> Option<&T> {
        self.chunks.get(slot as usize / CHUNK)?.get(slot as usize % CHUNK)?.as_ref()
    }

    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        self.chunks.get_mut(slot as usize / CHUNK)?.get_mut(slot as usize % CHUNK)?.as_mut()
    }

    pub fn remove(&mut self, slot: Slot) -> Option<T> {
        let removed = self.chunks.get_mut(slot as usize / CHUNK)?.get_mut(slot as usize % CHUNK)?.take();
        self.free.extend(removed.as_ref().map(|_| slot));
        removed
    }
}
