//! Instances of classes that messages name: dataclasses, enum members and namedtuples.

use std::sync::Arc;

use pyo3::ffi;
use pyo3::prelude::*;
use sglang_omni_payload::msgpack::{Token, TokenReader};

use super::{Decoder, Fault, Read, array, finish, malformed, owned, raised, refuse};
use crate::codec::types::{Field, FoundClass};

#[cold]
#[inline(never)]
fn refuse_class<T>(found: &FoundClass, what: &str) -> Result<T, Fault> {
    refuse(format!("{} is {what}", found.class))
}

impl<'py> Decoder<'_, 'py> {
    #[inline(never)]
    fn class(&self, reader: &mut TokenReader<'_>) -> Result<Arc<FoundClass>, Fault> {
        match reader.next_token().map_err(malformed)? {
            Token::Str(name) => Ok(self.tools.classes.named(self.py, name, self.trusted)?),
            other => refuse(format!("a type's name must be a str, got {other:?}")),
        }
    }

    #[inline(never)]
    pub(super) fn dataclass(&mut self, body: &[u8]) -> Read<'py> {
        let mut reader = TokenReader::new(body);
        let len = array(&mut reader)?;
        let found = self.class(&mut reader)?;
        let (2, Some(fields), Token::Map(len)) =
            (len, &found.fields, reader.next_token().map_err(malformed)?)
        else {
            return refuse_class(&found, "no dataclass of such fields");
        };
        // Fields are set without __init__ and __post_init__, which ran at the sender.
        // SAFETY: a callable, its argument and the end of the list.
        let object = unsafe {
            let object = ffi::PyObject_CallFunctionObjArgs(
                self.tools.new_object.as_ptr(),
                found.class.as_ptr(),
                std::ptr::null_mut::<ffi::PyObject>(),
            );
            owned(self.py, object)?
        };
        for index in 0..len {
            let field = field(
                &found,
                fields,
                index,
                reader.next_token().map_err(malformed)?,
            )?;
            let value = self.value(&mut reader)?;
            // SAFETY: three live objects. This is object.__setattr__, even if the class defines its own.
            let set = unsafe {
                ffi::PyObject_GenericSetAttr(object.as_ptr(), field.name.as_ptr(), value.as_ptr())
            };
            if set != 0 {
                return Err(raised(self.py));
            }
        }
        finish(&reader)?;
        Ok(object)
    }

    #[inline(never)]
    pub(super) fn member(&mut self, body: &[u8]) -> Read<'py> {
        let mut reader = TokenReader::new(body);
        let len = array(&mut reader)?;
        let found = self.class(&mut reader)?;
        let (2, Some(members)) = (len, &found.members) else {
            return refuse_class(&found, "no enum");
        };
        let member = self.value(&mut reader)?;
        finish(&reader)?;
        if found.is_flag {
            return Ok(found.class.bind(self.py).call1((member,))?);
        }
        match members.bind(self.py).get_item(&member)? {
            Some(member) => Ok(member),
            None => refuse(format!("{} has no member {member:?}", found.class)),
        }
    }

    #[inline(never)]
    pub(super) fn namedtuple(&mut self, body: &[u8]) -> Read<'py> {
        let mut reader = TokenReader::new(body);
        let len = array(&mut reader)?;
        let found = self.class(&mut reader)?;
        if len == 0 || found.arity != Some(len - 1) {
            return refuse_class(&found, "no namedtuple of so many fields");
        }
        let values = self.tuple_of(&mut reader, len - 1)?;
        finish(&reader)?;
        self.named(&found, &values)
    }

    #[inline(never)]
    fn named(&self, found: &FoundClass, values: &Bound<'py, PyAny>) -> Read<'py> {
        let class = found.class.bind(self.py);
        Ok(self.tools.new_tuple.bind(self.py).call1((class, values))?)
    }
}

/// The field of that name. Fields come in the order of the class, possibly with gaps.
#[inline]
fn field<'a>(
    found: &FoundClass,
    fields: &'a [Field],
    index: usize,
    name: Token<'_>,
) -> Result<&'a Field, Fault> {
    let Token::Str(name) = name else {
        return refuse_class(found, "no class with fields of such names");
    };
    match fields.get(index) {
        Some(field) if field.utf8() == name => Ok(field),
        _ => match fields.iter().find(|field| field.utf8() == name) {
            Some(field) => Ok(field),
            None => refuse_class(found, &format!("no class with a field {name:?}")),
        },
    }
}
