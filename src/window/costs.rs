//! [`Costs`]: the costs of the entries of a budget, in the order of the entries.

/// What an entry of a budget takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    /// What it took when it was admitted.
    pub(crate) initial: u32,
    /// What it takes since it was settled.
    pub(crate) now: u32,
}

impl Cost {
    pub(crate) const fn of(cost: u32) -> Self {
        Self { initial: cost, now: cost }
    }
}

/// Costs that can be summed and searched in logarithmic time.
///
/// A binary indexed tree (Peter M. Fenwick, "A new data structure for cumulative frequency tables", 1994): node
/// `n`, counted from 1, has the sum of the `n & -n` costs up to and including the one at `n - 1`.
#[derive(Clone, Debug, Default)]
pub(super) struct Costs {
    costs: Vec<Cost>,
    nodes: Vec<u64>,
    /// The first costs are no longer part of it. They leave the memory when they are as many as the others.
    removed: usize,
}

impl Costs {
    pub(super) fn get(&self, index: usize) -> Cost {
        self.costs[self.removed + index]
    }

    /// Returns the sum of all costs from an index on.
    pub(super) fn from(&self, index: usize) -> u64 {
        self.sum(self.costs.len()) - self.sum(self.removed + index)
    }

    /// Returns the index of the cost with which the sum of the first ones becomes `wanted` or more.
    pub(super) fn reach(&self, wanted: u64) -> usize {
        let mut missing = wanted + self.sum(self.removed);
        let mut count = 0;
        let mut step = self.nodes.len().checked_ilog2().map_or(0, |log| 1_usize << log);
        while step > 0 {
            if let Some(node) = self.nodes.get(count + step - 1).filter(|node| **node < missing) {
                missing -= node;
                count += step;
            }
            step /= 2;
        }
        count - self.removed
    }

    pub(super) fn set(&mut self, index: usize, cost: u32) {
        let index = self.removed + index;
        let before = std::mem::replace(&mut self.costs[index].now, cost);
        let mut node = index + 1;
        while let Some(sum) = self.nodes.get_mut(node - 1) {
            *sum = *sum + u64::from(cost) - u64::from(before);
            node += node & node.wrapping_neg();
        }
    }

    /// Inserts a cost before an index: in logarithmic time at the end, where nearly all are added.
    pub(super) fn insert(&mut self, index: usize, cost: Cost) {
        let index = self.removed + index;
        self.costs.insert(index, cost);
        self.rebuild_from(index);
    }

    pub(super) fn remove(&mut self, index: usize) {
        let index = self.removed + index;
        self.costs.remove(index);
        self.rebuild_from(index);
    }

    /// Removes the first costs, in constant time on average.
    pub(super) fn remove_first(&mut self, count: usize) {
        self.removed += count;
        if 2 * self.removed >= self.costs.len() {
            self.costs.drain(..self.removed);
            self.removed = 0;
            if self.costs.capacity() > 32 && self.costs.len() < self.costs.capacity() / 4 {
                self.costs.shrink_to_fit();
                self.nodes.shrink_to(self.costs.len());
            }
            self.rebuild_from(0);
        }
    }

    fn sum(&self, count: usize) -> u64 {
        let (mut node, mut sum) = (count, 0);
        while node > 0 {
            sum += self.nodes[node - 1];
            node &= node - 1;
        }
        sum
    }

    /// Makes the nodes anew that have a cost from an index on.
    fn rebuild_from(&mut self, index: usize) {
        self.nodes.truncate(index);
        for node in index + 1..=self.costs.len() {
            let (mut sum, mut child) = (u64::from(self.costs[node - 1].now), node - 1);
            while child > (node & (node - 1)) {
                sum += self.nodes[child - 1];
                child &= child - 1;
            }
            self.nodes.push(sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(usize, u32),
        Remove(usize),
        Set(usize, u32),
        RemoveFirst(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let cost = || prop_oneof![0..9_u32, Just(u32::MAX)];
        prop_oneof![
            6 => (0..4_usize, cost()).prop_map(|(newer, cost)| Step::Insert(newer, cost)),
            1 => any::<usize>().prop_map(Step::Remove),
            2 => (any::<usize>(), cost()).prop_map(|(index, cost)| Step::Set(index, cost)),
            1 => (0..6_usize).prop_map(Step::RemoveFirst),
        ]
    }

    proptest! {
        #[test]
        fn sums_are_those_of_a_list(steps in prop::collection::vec(step(), 0..80), wanted in 1..40_u64) {
            let (mut costs, mut model) = (Costs::default(), Vec::<u32>::new());
            for step in steps {
                let length = model.len();
                match step {
                    Step::Insert(newer, cost) => {
                        let index = length.saturating_sub(newer);
                        costs.insert(index, Cost::of(cost));
                        model.insert(index, cost);
                    }
                    Step::Remove(index) if length > 0 => {
                        costs.remove(index % length);
                        model.remove(index % length);
                    }
                    Step::Set(index, cost) if length > 0 => {
                        costs.set(index % length, cost);
                        model[index % length] = cost;
                    }
                    Step::RemoveFirst(count) => {
                        costs.remove_first(count.min(length));
                        model.drain(..count.min(length));
                    }
                    Step::Remove(_) | Step::Set(..) => {}
                }
                let sum = |costs: &[u32]| costs.iter().map(|cost| u64::from(*cost)).sum::<u64>();
                for count in 0..=model.len() {
                    prop_assert_eq!(costs.from(count), sum(&model[count..]));
                }
                if sum(&model) >= wanted {
                    let reached = (0..model.len()).find(|index| sum(&model[..=*index]) >= wanted);
                    prop_assert_eq!(Some(costs.reach(wanted)), reached);
                }
            }
        }
    }
}
