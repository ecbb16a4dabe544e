//! Packs views that skip memory: the bytes that they skip are left out, and bytes that they share stay shared.
//!
//! Views whose strides have a common period lie in windows of that period, as columns of a matrix lie in windows of its
//! rows. Bytes that no window covers are left out of every period; the inside of a window is treated in the same way.
//! Views without a common period keep their distances, with zeros between them.

use std::ops::Range;

use crate::Source;

/// At most so many periods are tried, and so many beginnings of each.
const PERIODS: usize = 16;
const BASES: usize = 16;

/// A dimension with several elements at different addresses: its number, its size and its step in bytes.
type Dim = (usize, u64, u64);

/// The part of a view that decides which bytes it has.
#[derive(Clone)]
struct Shape {
    row: usize,
    /// The lowest byte, in the source's memory or in a window.
    low: u64,
    item: u64,
    /// The largest step first.
    dims: Vec<Dim>,
}

/// Where the bytes of a [`Shape`] go: its lowest byte, and the step of each dimension.
struct PlacedView {
    row: usize,
    low: u64,
    dims: Vec<Dim>,
}

struct Placement {
    len: u64,
    places: Vec<PlacedView>,
    /// Whether nothing was moved and every byte belongs to a view.
    whole: bool,
}

impl Placement {
    /// The place of a row. The places must be sorted by row.
    fn of(&self, row: usize) -> &PlacedView {
        let found = self.places.binary_search_by_key(&row, |place| place.row);
        &self.places[found.expect("every view has its place")]
    }
}

/// New memory for views that share bytes or interleave, and the position of each view in it.
#[derive(Debug)]
pub struct Layout {
    pub len: usize,
    views: Vec<View>,
}

#[derive(Debug)]
struct View {
    row: usize,
    /// Of the first element.
    offset: u64,
    strides: Vec<i64>,
    /// Address of the lowest byte, its offset in the new memory, and (size, old step, new step) of each dimension.
    from: usize,
    to: u64,
    item: u64,
    steps: Vec<(u64, u64, u64)>,
}

impl Shape {
    fn of(row: usize, source: &Source) -> Self {
        let mut low = source.address as i128;
        let mut dims = Vec::with_capacity(source.shape.len());
        for (number, (&size, &stride)) in source.shape.iter().zip(&source.strides).enumerate() {
            if size > 1 && stride != 0 {
                low += i128::from(size - 1) * i128::from(stride.min(0));
                dims.push((number, size, stride.unsigned_abs()));
            }
        }
        dims.sort_unstable_by_key(|&(_, _, step)| std::cmp::Reverse(step));
        Self {
            row,
            low: low as u64,
            item: source.dtype.itemsize,
            dims,
        }
    }

    /// Number of bytes from the lowest to the highest.
    fn extent(&self) -> u64 {
        extent(self.item, &self.dims)
    }

    /// Whether all of these bytes belong to the view.
    fn is_whole(&self) -> bool {
        let mut reach = self.item;
        self.dims.iter().rev().all(|&(_, size, step)| {
            let closed = step <= reach;
            reach = reach.saturating_add((size - 1).saturating_mul(step));
            closed
        })
    }

    fn range(&self) -> Range<u64> {
        self.low..self.low + self.extent()
    }
}

fn extent(item: u64, dims: &[Dim]) -> u64 {
    dims.iter()
        .map(|&(_, size, step)| (size - 1) * step)
        .sum::<u64>()
        + item
}

/// Whether a view has every byte between its first and its last one.
pub fn is_whole(source: &Source) -> bool {
    // Nearly all views are contiguous; this test allocates nothing.
    let mut expected = source.dtype.itemsize as i64;
    let mut dims = source.shape.iter().zip(&source.strides).rev();
    let is_contiguous = dims.all(|(&size, &stride)| {
        let fits = size == 1 || stride == expected;
        expected = expected.wrapping_mul(size as i64);
        fits
    });
    is_contiguous || source.shape.contains(&0) || Shape::of(0, source).is_whole()
}

/// Finds groups of sources that overlap or interleave and skip memory, and returns a layout without the gaps for each.
/// Returns none if a source is one that `Plan::new` refuses.
pub fn layouts(sources: &[Source]) -> Vec<Layout> {
    let fits = |source: &Source| {
        let extent = crate::extent(source.dtype.itemsize, &source.shape, &source.strides);
        let moved = |by: i64| source.address.checked_add_signed(by as isize).is_some();
        source.shape.len() == source.strides.len()
            && extent.is_some_and(|(low, high)| moved(low) && moved(high))
    };
    if !sources.iter().all(fits) {
        return Vec::new();
    }
    let shapes = sources.iter().enumerate();
    let shapes = shapes.filter(|(_, source)| !source.shape.contains(&0));
    clusters(shapes.map(|(row, source)| Shape::of(row, source)).collect())
        .into_iter()
        .filter(|cluster| !cluster.iter().all(Shape::is_whole))
        .filter_map(|cluster| layout(sources, &cluster))
        .collect()
}

fn layout(sources: &[Source], cluster: &[Shape]) -> Option<Layout> {
    let mut placed = place_cluster(cluster);
    if placed.whole {
        return None;
    }
    placed.places.sort_unstable_by_key(|place| place.row);
    let views = cluster.iter().map(|shape| {
        let place = placed.of(shape.row);
        let source = &sources[shape.row];
        let mut offset = place.low;
        let mut strides = vec![0; source.shape.len()];
        let mut steps = Vec::with_capacity(shape.dims.len());
        for &(number, size, from) in &shape.dims {
            let dim = place.dims.iter().find(|dim| dim.0 == number);
            let &(_, _, to) = dim.expect("every dimension has its step");
            strides[number] = to as i64;
            if source.strides[number] < 0 {
                strides[number] = -strides[number];
                offset += (size - 1) * to;
            }
            steps.push((size, from, to));
        }
        View {
            row: shape.row,
            offset,
            strides,
            from: shape.low as usize,
            to: place.low,
            item: shape.item,
            steps,
        }
    });
    Some(Layout {
        len: usize::try_from(placed.len).ok()?,
        views: views.collect(),
    })
}

/// Groups views by their memory: views of different clusters do not overlap or interleave.
fn clusters(mut shapes: Vec<Shape>) -> Vec<Vec<Shape>> {
    shapes.sort_unstable_by_key(|shape| (shape.low, shape.row));
    let mut clusters: Vec<Vec<Shape>> = Vec::new();
    let mut end = 0;
    for shape in shapes {
        let range = shape.range();
        match clusters.last_mut() {
            Some(cluster) if range.start < end => cluster.push(shape),
            _ => clusters.push(vec![shape]),
        }
        end = end.max(range.end);
    }
    clusters
}

fn alignment(cluster: &[Shape]) -> u64 {
    cluster.iter().map(|shape| shape.item).max().unwrap_or(1)
}

/// Clusters one after the other, as close as their alignment allows.
fn place_all(shapes: Vec<Shape>) -> Placement {
    let (mut len, mut places, mut whole) = (0u64, Vec::new(), true);
    for cluster in clusters(shapes) {
        let start = len.next_multiple_of(alignment(&cluster));
        let placed = place_cluster(&cluster);
        // The window is whole only if nothing lies between its clusters and none was moved.
        let low = cluster[0].low;
        whole &= placed.whole && low == start && start == len;
        len = start + placed.len;
        places.extend(placed.places.into_iter().map(|mut place| {
            place.low += start;
            place
        }));
    }
    places.sort_unstable_by_key(|place| place.row);
    Placement { len, places, whole }
}

fn place_cluster(cluster: &[Shape]) -> Placement {
    if covers(cluster) {
        return unmoved(cluster, true);
    }
    squeezed(cluster).unwrap_or_else(|| unmoved(cluster, false))
}

/// Whether the views without gaps cover all of the cluster's bytes.
fn covers(cluster: &[Shape]) -> bool {
    let mut reached = cluster[0].low;
    let end = cluster.iter().map(|shape| shape.range().end).max();
    for shape in cluster.iter().filter(|shape| shape.is_whole()) {
        let range = shape.range();
        if range.start > reached {
            return false;
        }
        reached = reached.max(range.end);
    }
    Some(reached) == end
}

fn unmoved(cluster: &[Shape], whole: bool) -> Placement {
    // The largest elements keep their alignment.
    let base = cluster[0].low - cluster[0].low % alignment(cluster);
    let end = cluster.iter().map(|shape| shape.range().end).max();
    let places = cluster.iter().map(|shape| PlacedView {
        row: shape.row,
        low: shape.low - base,
        dims: shape.dims.clone(),
    });
    Placement {
        len: end.unwrap_or(base) - base,
        places: places.collect(),
        whole,
    }
}

/// The cluster without the bytes that lie in no window. `None` if there is no common period, or nothing is saved.
fn squeezed(cluster: &[Shape]) -> Option<Placement> {
    let steps = cluster.iter().flat_map(|shape| &shape.dims);
    let mut periods: Vec<u64> = steps.map(|dim| dim.2).collect();
    periods.sort_unstable_by(|a, b| b.cmp(a));
    periods.dedup();
    let tried = periods.into_iter().take(PERIODS);
    tried
        .filter_map(|period| squeezed_by(cluster, period))
        .next()
}

fn squeezed_by(cluster: &[Shape], period: u64) -> Option<Placement> {
    let align = alignment(cluster);
    let is_outer = |dim: &Dim| dim.2.is_multiple_of(period);
    let inner: Vec<Shape> = cluster
        .iter()
        .map(|shape| Shape {
            dims: shape
                .dims
                .iter()
                .copied()
                .filter(|dim| !is_outer(dim))
                .collect(),
            ..shape.clone()
        })
        .collect();
    let from = |base: u64, low: u64| i128::from(low) - i128::from(base);
    let within = |base: u64, low: u64| from(base, low).rem_euclid(i128::from(period)) as u64;
    let fits = |base: u64| {
        let mut views = inner.iter();
        views.all(|view| within(base, view.low) + view.extent() <= period)
    };
    let base = inner
        .iter()
        .map(|view| {
            view.low
                - if period.is_multiple_of(align) {
                    view.low % align
                } else {
                    0
                }
        })
        .take(BASES)
        .find(|&base| fits(base))?;
    let number = |low: u64| from(base, low).div_euclid(i128::from(period));
    let first = inner.iter().map(|view| number(view.low)).min()?;
    let moved = inner.iter().map(|view| Shape {
        low: within(base, view.low),
        ..view.clone()
    });
    let window = place_all(moved.collect());
    let shorter = window.len.next_multiple_of(align);
    let outer = |shape: &Shape| -> Vec<Dim> {
        let outer = shape.dims.iter().copied().filter(is_outer);
        outer
            .map(|(number, size, step)| (number, size, step / period))
            .collect()
    };
    if shorter >= period {
        // Together the views may cover everything, as the parts of a fused projection do.
        let periods = |shape: &Shape| match outer(shape)[..] {
            [(_, size, 1)] => Some((number(shape.low), size)),
            _ => None,
        };
        let alike = periods(&cluster[0]).is_some()
            && cluster
                .iter()
                .all(|shape| periods(shape) == periods(&cluster[0]));
        let whole = window.whole && window.len == period && alike;
        return whole.then(|| unmoved(cluster, true));
    }
    let mut len = 0;
    let places = cluster.iter().map(|shape| {
        let place = window.of(shape.row);
        let outer = outer(shape).into_iter();
        let outer = outer.map(|(number, size, periods)| (number, size, periods * shorter));
        let dims: Vec<Dim> = outer.chain(place.dims.iter().copied()).collect();
        let low = (number(shape.low) - first) as u64 * shorter + place.low;
        len = len.max(low + extent(shape.item, &dims));
        PlacedView {
            row: shape.row,
            low,
            dims,
        }
    });
    let places = places.collect();
    Some(Placement {
        len,
        places,
        whole: false,
    })
}

impl Layout {
    /// For each view: its row, the offset of its first element, and its strides in bytes.
    pub fn views(&self) -> impl Iterator<Item = (usize, usize, &[i64])> + Clone {
        let views = self.views.iter();
        views.map(|view| (view.row, view.offset as usize, &view.strides[..]))
    }

    /// Copies the views' elements, and nothing else, to `target`.
    ///
    /// # Safety
    /// `target` is valid for writing `len` bytes. The memory of every source is still allocated, readable and not part
    /// of the target.
    pub unsafe fn gather(&self, target: *mut u8) {
        for view in &self.views {
            // Innermost elements that are adjacent in both memories are copied at once.
            let mut run = view.item;
            let mut steps = &view.steps[..];
            let mut by_target = view.steps.clone();
            by_target.sort_unstable_by_key(|&(_, _, to)| std::cmp::Reverse(to));
            if by_target == view.steps {
                while let Some((&(size, from, to), outer)) = steps.split_last()
                    && from == run
                    && to == run
                {
                    run *= size;
                    steps = outer;
                }
            }
            // SAFETY: the layout has room for every element, and the caller vouches for both memories.
            unsafe {
                let to = target.add(view.to as usize);
                copy_strided(view.from as *const u8, to, run as usize, steps);
            }
        }
    }
}

/// # Safety
/// At every step from `from` and `to`, `run` bytes are readable and writable.
unsafe fn copy_strided(from: *const u8, to: *mut u8, run: usize, steps: &[(u64, u64, u64)]) {
    let Some((&(size, step, stride), inner)) = steps.split_first() else {
        // SAFETY: the caller's promise.
        return unsafe { std::ptr::copy_nonoverlapping(from, to, run) };
    };
    let (size, step, stride) = (size as usize, step as usize, stride as usize);
    if inner.is_empty() {
        // SAFETY: the caller's promise; in each case `T` has the run's size.
        return unsafe {
            match run {
                1 => copy_each::<u8>(from, to, size, step, stride),
                2 => copy_each::<u16>(from, to, size, step, stride),
                4 => copy_each::<u32>(from, to, size, step, stride),
                8 => copy_each::<u64>(from, to, size, step, stride),
                _ => (0..size).for_each(|i| {
                    std::ptr::copy_nonoverlapping(from.add(i * step), to.add(i * stride), run);
                }),
            }
        };
    }
    for i in 0..size {
        // SAFETY: the caller's promise.
        unsafe { copy_strided(from.add(i * step), to.add(i * stride), run, inner) };
    }
}

/// # Safety
/// A `T` of plain bytes is readable and writable at each step.
unsafe fn copy_each<T>(from: *const u8, to: *mut u8, size: usize, step: usize, stride: usize) {
    for i in 0..size {
        // SAFETY: the caller's promise.
        unsafe {
            let value = from.add(i * step).cast::<T>().read_unaligned();
            to.add(i * stride).cast::<T>().write_unaligned(value);
        }
    }
}
