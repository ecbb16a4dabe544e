use std::collections::HashMap;

use proptest::prelude::*;

use crate::layout::{Layout, layouts};
use crate::{DTYPES, Framework, Source};

/// A view of memory. `item` is the element size in bytes; `first` and the strides count elements.
fn view(memory: &[u8], item: u64, first: u64, dims: &[(u64, i64)]) -> Source {
    let dtype = DTYPES.into_iter().find(|dtype| dtype.itemsize == item);
    Source {
        framework: Framework::Numpy,
        dtype: dtype.unwrap(),
        address: memory.as_ptr() as usize + (first * item) as usize,
        shape: dims.iter().map(|dim| dim.0).collect(),
        strides: dims.iter().map(|dim| dim.1 * item as i64).collect(),
    }
}

/// The addresses of a view's bytes, in the order of its elements.
fn bytes(address: i64, item: u64, shape: &[u64], strides: &[i64]) -> Vec<i64> {
    let mut at = vec![address];
    for (&size, &stride) in shape.iter().zip(strides) {
        let steps = |&start: &i64| (0..size as i64).map(move |i| start + i * stride);
        at = at.iter().flat_map(steps).collect();
    }
    let of_item = |&start: &i64| (0..item as i64).map(move |i| start + i);
    at.iter().flat_map(of_item).collect()
}

/// Checks what a layout promises; returns how many of its bytes belong to no view.
fn check(sources: &[Source], layout: &Layout) -> usize {
    const LEFT: u8 = 0xa5;
    let mut target = vec![LEFT; layout.len];
    // SAFETY: as long as the layout says, and the callers keep the sources.
    unsafe { layout.gather(target.as_mut_ptr()) };
    let (mut there, mut back) = (HashMap::new(), HashMap::new());
    for (row, offset, strides) in layout.views() {
        let source = &sources[row];
        let item = source.dtype.itemsize;
        assert_eq!(offset % item as usize, source.address % item as usize);
        let from = bytes(source.address as i64, item, &source.shape, &source.strides);
        let to = bytes(offset as i64, item, &source.shape, strides);
        for (from, to) in from.into_iter().zip(to) {
            // One byte stays one byte, and two stay two.
            assert_eq!(*there.entry(from).or_insert(to), to);
            assert_eq!(*back.entry(to).or_insert(from), from);
            // SAFETY: a byte of the source.
            assert_eq!(target[to as usize], unsafe { *(from as *const u8) });
        }
    }
    let left = (0..target.len()).filter(|&at| !back.contains_key(&(at as i64)));
    left.inspect(|&at| assert_eq!(target[at], LEFT)).count()
}

fn memory(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes to fill its memory")]
fn columns_come_without_the_rest_of_their_rows() {
    let memory = memory(4_000_000);
    let column = |first| view(&memory, 4, first, &[(1000, 1000)]);
    let sources = [column(0), column(999)];
    let [layout] = &layouts(&sources)[..] else {
        panic!("one layout")
    };
    assert_eq!(layout.len, 8000);
    assert_eq!(check(&sources, layout), 0);
}

#[test]
fn columns_that_share_some_share_them_still() {
    let memory = memory(400_000);
    let columns = |first, count| view(&memory, 4, first, &[(100, 1000), (count, 1)]);
    let sources = [columns(0, 10), columns(5, 10), columns(500, 2)];
    let layouts = layouts(&sources);
    assert_eq!(layouts.len(), 1);
    assert_eq!(layouts[0].len, 100 * 17 * 4);
    assert_eq!(check(&sources, &layouts[0]), 0);
}

#[test]
fn views_that_together_cover_everything_are_not_moved() {
    let memory = memory(300 * 64);
    // The parts of a fused projection, and real and imaginary parts.
    let part = |first| view(&memory, 4, first, &[(64, 75), (25, 1)]);
    assert!(layouts(&[part(0), part(25), part(50)]).is_empty());
    let half = |first| view(&memory, 4, first, &[(500, 2)]);
    assert!(layouts(&[half(1), half(0)]).is_empty());
    // A view of the whole among others.
    let whole = view(&memory, 4, 0, &[(4800, 1)]);
    assert!(layouts(&[part(25), whole, half(7)]).is_empty());
}

#[test]
fn views_without_a_common_period_have_zeros_between_them() {
    let memory = memory(100 * 100 * 4);
    let sources = [
        view(&memory, 4, 0, &[(100, 1)]),
        view(&memory, 4, 0, &[(100, 100)]),
        view(&memory, 4, 0, &[(100, 101)]),
    ];
    let layouts = layouts(&sources);
    assert_eq!(layouts.len(), 1);
    assert_eq!(
        check(&sources, &layouts[0]),
        layouts[0].len - (100 + 99 + 99) * 4
    );
}

#[test]
fn an_expanded_column_is_a_column() {
    let memory = memory(400_000);
    let sources = [view(&memory, 4, 3, &[(100, 1000), (1000, 0)])];
    let layouts = layouts(&sources);
    assert_eq!(layouts[0].len, 400);
    assert_eq!(check(&sources, &layouts[0]), 0);
}

proptest! {
    #[test]
    fn layouts_keep_values_and_sharing_and_nothing_else(
        views in proptest::collection::vec(
            (0usize..4, 0u64..60, proptest::collection::vec((1u64..5, -12i64..13), 0..4)), 1..7
        ),
    ) {
        let memory = memory(8000);
        let sources: Vec<Source> = views
            .iter()
            .map(|(item, first, dims)| view(&memory, 1 << item, 200 + first, dims))
            .collect();
        for layout in layouts(&sources) {
            check(&sources, &layout);
        }
    }

    #[test]
    fn views_of_a_matrix_take_what_they_have(
        width in 20u64..40,
        columns in proptest::collection::vec((0u64..10, 1u64..10), 1..6),
        height in 3u64..9,
    ) {
        let memory = memory((width * height * 4) as usize);
        let sources: Vec<Source> = columns
            .iter()
            .map(|&(first, count)| view(&memory, 4, first, &[(height, width as i64), (count, 1)]))
            .collect();
        for layout in layouts(&sources) {
            prop_assert_eq!(check(&sources, &layout), 0);
        }
    }
}
