use super::*;
use proptest::prelude::*;

fn read(bytes: &[u8]) -> Vec<Token<'_>> {
    let mut reader = TokenReader::new(bytes);
    let mut tokens = Vec::new();
    while reader.owed > 0 {
        tokens.push(reader.next_token().unwrap());
    }
    reader.finish().unwrap();
    tokens
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

#[test]
fn ints_take_the_shortest_form_and_come_back() {
    for (value, len) in [
        (0, 1),
        (127, 1),
        (128, 2),
        (256, 3),
        (65_536, 5),
        (1 << 32, 9),
        (i64::MAX, 9),
        (-1, 1),
        (-32, 1),
        (-33, 2),
        (-129, 3),
        (-40_000, 5),
        (i64::MIN, 9),
    ] {
        let bytes = written(|out| write_int(out, value));
        assert_eq!(bytes.len(), len, "{value}");
        assert_eq!(read(&bytes), [Token::Int(value)]);
    }
    let bytes = written(|out| write_uint(out, u64::MAX));
    assert_eq!(read(&bytes), [Token::Uint(u64::MAX)]);
}

#[test]
fn lengths_take_every_form() {
    for len in [
        0, 1, 2, 4, 8, 15, 16, 17, 31, 32, 255, 256, 65_535, 65_536, 70_000,
    ] {
        let body = vec![b'x'; len];
        let bytes = written(|out| write_str(out, &body).unwrap());
        assert_eq!(read(&bytes), [Token::Str(&body)]);
        let bytes = written(|out| write_bin(out, &body).unwrap());
        assert_eq!(read(&bytes), [Token::Bin(&body)]);
        let bytes = written(|out| write_ext(out, 7, &body).unwrap());
        assert_eq!(read(&bytes), [Token::Ext(7, &body)]);
        let array = written(|out| {
            write_array(out, len).unwrap();
            out.resize(out.len() + len, 0xc0);
        });
        assert_eq!(read(&array)[0], Token::Array(len));
        let map = written(|out| {
            write_map(out, len).unwrap();
            out.resize(out.len() + 2 * len, 0xc3);
        });
        assert_eq!(read(&map)[0], Token::Map(len));
        assert_eq!(read(&map).len(), 1 + 2 * len);
    }
}

#[test]
fn an_open_extension_gets_its_length() {
    let bytes = written(|out| {
        let ext = begin_ext(out, -3);
        write_float(out, 0.5);
        write_bool(out, true);
        end_ext(out, ext).unwrap();
    });
    let [Token::Ext(-3, body)] = read(&bytes)[..] else {
        panic!("an extension")
    };
    let mut reader = TokenReader::new(body);
    assert_eq!(reader.next_token(), Ok(Token::Float(0.5)));
    assert_eq!(reader.finish(), Err(Malformed::Trailing(1)));
}

#[test]
fn promises_beyond_the_bytes_are_refused() {
    // Each container alone could be there; together they promise more than there is.
    let mut nested = Vec::new();
    for _ in 0..3 {
        nested.extend_from_slice(&[0xdc, 0, 8]);
    }
    nested.resize(3 + 3 + 3 + 10, 0xc0);
    let mut reader = TokenReader::new(&nested);
    assert_eq!(reader.next_token(), Ok(Token::Array(8)));
    assert_eq!(reader.next_token(), Err(Malformed::Truncated));
    // The same through an extension: its body takes what the array around it needs.
    let mut hidden = vec![0x98, 0xc7, 10, 1];
    hidden.resize(4 + 10 + 6, 0xc0);
    let mut reader = TokenReader::new(&hidden);
    assert_eq!(reader.next_token(), Ok(Token::Array(8)));
    assert_eq!(reader.next_token(), Err(Malformed::Truncated));

    for huge in [
        [0xdd, 0xff, 0xff, 0xff, 0xff],
        [0xdf, 0xff, 0xff, 0xff, 0xff],
        [0xc6, 0xff, 0xff, 0xff, 0xff],
        [0xc9, 0xff, 0xff, 0xff, 0xff],
    ] {
        assert_eq!(
            TokenReader::new(&huge).next_token(),
            Err(Malformed::Truncated),
            "{huge:?}"
        );
    }
    assert_eq!(
        TokenReader::new(&[0xc1]).next_token(),
        Err(Malformed::Reserved)
    );
    assert_eq!(
        TokenReader::new(&[]).next_token(),
        Err(Malformed::Truncated)
    );
    assert_eq!(TokenReader::new(&[1]).finish(), Err(Malformed::Truncated));
}

proptest! {
    #[test]
    fn noise_ends(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut reader = TokenReader::new(&bytes);
        let mut tokens = 0;
        while reader.owed > 0 && let Ok(token) = reader.next_token() {
            tokens += 1;
            if matches!(token, Token::Array(_) | Token::Map(_)) {
                prop_assert!(reader.owed <= reader.rest.len());
            }
        }
        prop_assert!(tokens <= bytes.len());
    }

    #[test]
    fn floats_and_ints_come_back(float in any::<f64>(), int in any::<i64>()) {
        let bytes = written(|out| write_float(out, float));
        let [Token::Float(back)] = read(&bytes)[..] else { panic!("a float") };
        prop_assert_eq!(back.to_bits(), float.to_bits());
        let bytes = written(|out| write_int(out, int));
        prop_assert_eq!(read(&bytes), vec![Token::Int(int)]);
    }
}
