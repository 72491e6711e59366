//! Decides what a `JSONPath` template finds, as kubectl's does.
//!
//! Text outside of braces is copied. Inside: `{.a.b}`, `{.a[0]}`, `{.a[-1]}`, `{.a[0:2]}`,
//! `{.a[0:9:2]}`, `{.a[0,2]}`, `{.a[*].b}`, `{..b}`, `{['odd.name']}`, `{.a[?(@.b=="c")].d}`, `{"\n"}`, `{range .a[*]}...{end}`.

mod parse;

use serde_json::Value;

use crate::output::text;

/// A template.
#[derive(Debug, Clone, PartialEq)]
pub struct Template(Vec<Part>);

#[derive(Debug, Clone, PartialEq)]
enum Part {
    Text(String),
    Path(Path),
    Range(Path, Vec<Part>),
}

/// Where to look.
#[derive(Debug, Clone, PartialEq, Default)]
struct Path(Vec<Step>);

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Members(Vec<String>),
    Indices(Vec<i64>),
    /// From, to, and every how manieth.
    Slice(Option<i64>, Option<i64>, usize),
    Each,
    Everywhere,
    Filter(Path, Option<(Compare, Value)>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compare {
    Equal,
    Unequal,
    Less,
    AtMost,
    More,
    AtLeast,
}

/// How deep `..` looks: nothing that an agent answers comes near it.
const DEEPEST: usize = 64;

impl Template {
    /// Reads a template; a path alone may leave its braces out.
    pub fn parse(text: &str) -> Result<Self, String> {
        parse::template(text).map(Self)
    }

    /// What it says of a value; an error if it asks for an item that a list doesn't have.
    pub fn show(&self, value: &Value) -> Result<String, String> {
        let mut shown = String::new();
        show(&self.0, value, &mut shown)?;
        Ok(shown)
    }
}

fn show(parts: &[Part], value: &Value, shown: &mut String) -> Result<(), String> {
    for part in parts {
        match part {
            Part::Text(text) => shown.push_str(text),
            Part::Path(path) => {
                let found: Vec<String> = path.find(value)?.into_iter().map(text).collect();
                shown.push_str(&found.join(" "));
            }
            Part::Range(path, inner) => {
                for one in path.find(value)? {
                    show(inner, one, shown)?;
                }
            }
        }
    }
    Ok(())
}

impl Path {
    fn find<'a>(&self, value: &'a Value) -> Result<Vec<&'a Value>, String> {
        let mut found = vec![value];
        for step in &self.0 {
            let mut next = Vec::new();
            for value in found {
                step.of(value, &mut next)?;
            }
            found = next;
        }
        Ok(found)
    }
}

impl Step {
    fn of<'a>(&self, value: &'a Value, found: &mut Vec<&'a Value>) -> Result<(), String> {
        match (self, value) {
            (Self::Members(names), value) => {
                found.extend(names.iter().filter_map(|n| value.get(n)));
            }
            (Self::Indices(_) | Self::Slice(..), Value::Null) => {}
            (Self::Indices(indices), value) => {
                let list = list(value)?;
                for index in indices {
                    let at = place(*index, list.len());
                    let one = usize::try_from(at).ok().and_then(|at| list.get(at));
                    found.push(one.ok_or_else(|| outside(at, list.len()))?);
                }
            }
            (Self::Slice(from, to, step), value) => {
                let slice = slice(list(value)?, *from, *to)?;
                found.extend(slice.iter().step_by((*step).max(1)));
            }
            (Self::Each, value) => found.extend(children(value)),
            (Self::Everywhere, value) => everywhere(value, found, 0),
            (Self::Filter(path, test), value) => {
                for one in children(value) {
                    let of = path.find(one);
                    let passes = match test {
                        // What can't be there isn't there.
                        None => of.is_ok_and(|of| !of.is_empty()),
                        Some((compare, wanted)) => of?.iter().any(|of| compare.holds(of, wanted)),
                    };
                    if passes {
                        found.push(one);
                    }
                }
            }
        }
        Ok(())
    }
}

fn list(value: &Value) -> Result<&[Value], String> {
    let kind = match value {
        Value::Array(list) => return Ok(list),
        Value::Object(_) => "an object",
        Value::String(_) => "a text",
        Value::Number(_) => "a number",
        Value::Null | Value::Bool(_) => "true or false",
    };
    Err(format!("{kind} is not array or slice"))
}

/// Part of a list. As for kubectl, both ends must be in it, unless nothing is asked for.
fn slice(list: &[Value], from: Option<i64>, to: Option<i64>) -> Result<&[Value], String> {
    let length = list.len();
    let whole = i64::try_from(length).unwrap_or(i64::MAX);
    let (from, to) = (place(from.unwrap_or(0), length), place(to.unwrap_or(whole), length));
    if from == to {
        return Ok(&[]);
    }
    let (first, end) = (usize::try_from(from), usize::try_from(to));
    let first = first.ok().filter(|first| *first < length).ok_or_else(|| outside(from, length))?;
    let end = end.ok().filter(|end| *end <= length).ok_or_else(|| outside(to - 1, length))?;
    list.get(first..end)
        .ok_or_else(|| format!("starting index {first} is greater than ending index {end}"))
}

fn outside(index: i64, length: usize) -> String {
    format!("array index out of bounds: index {index}, length {length}")
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(members) => members.values().collect(),
        _ => Vec::new(),
    }
}

fn everywhere<'a>(value: &'a Value, found: &mut Vec<&'a Value>, depth: usize) {
    found.push(value);
    if depth < DEEPEST {
        for child in children(value) {
            everywhere(child, found, depth + 1);
        }
    }
}

/// Where in a list of this length; negative numbers count from its end.
fn place(index: i64, length: usize) -> i64 {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    if index < 0 { index.saturating_add(length) } else { index }
}

impl Compare {
    fn holds(self, found: &Value, wanted: &Value) -> bool {
        use std::cmp::Ordering;
        let order = match (found, wanted) {
            (Value::Number(found), Value::Number(wanted)) => {
                found.as_f64().partial_cmp(&wanted.as_f64())
            }
            (Value::String(found), Value::String(wanted)) => Some(found.cmp(wanted)),
            _ => (found == wanted).then_some(Ordering::Equal),
        };
        match self {
            Self::Equal => order == Some(Ordering::Equal),
            Self::Unequal => order != Some(Ordering::Equal),
            Self::Less => order == Some(Ordering::Less),
            Self::AtMost => order.is_some_and(Ordering::is_le),
            Self::More => order == Some(Ordering::Greater),
            Self::AtLeast => order.is_some_and(Ordering::is_ge),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Template;
    use serde_json::json;

    #[test]
    fn finds_what_people_look_for() {
        let value = json!({
            "status": {"items": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 3}]},
            "odd.name": "x",
        });
        let cases = [
            ("{.status.items[1].id}", "2"),
            ("{$.status.items[1].id}", "2"),
            (".status.items[1].id", "2"),
            ("{.status.items[-1].id}", "3"),
            ("{.status.items[0:2].id}", "1 2"),
            ("{.status.items[1:].id}", "2 3"),
            ("{.status.items[*].id}", "1 2 3"),
            ("{.status.items[0:3:2].id}", "1 3"),
            ("{.status.items[0,-1].id}", "1 3"),
            ("{.status.items[?(@.id==1)]}", r#"{"id":1,"name":"a"}"#),
            ("{range .status.items[*]}{@.id},{end}", "1,2,3,"),
            (r#"{.status.items[?(@.name!="a==]")].id}"#, "1 2"),
            ("{..name}", "a b"),
            ("{['odd.name']}", "x"),
            (r"{.odd\.name}", "x"),
            ("{.status.items[0]['id','name']}", "1 a"),
            ("{.status.items[?(@.id>1)].id}", "2 3"),
            (r#"{.status.items[?(@.name=="b")].id}"#, "2"),
            ("{.status.items[?(@.name != 'b')].id}", "1"),
            ("{.status.items[?(@.name)].id}", "1 2"),
            ("{.status.none}", ""),
            ("id={.status.items[0].id}!", "id=1!"),
            (r#"{range .status.items[*]}{.id}{"\t"}{.name}{"\n"}{end}"#, "1\ta\n2\tb\n3\t\n"),
            ("{.odd}", ""),
            ("{.none[7].id}", ""),
            ("{.status.items[3:3].id}", ""),
            ("{.status.items[?(@.list[4])].id}", ""),
        ];
        for (path, want) in cases {
            let shown = Template::parse(path).expect(path).show(&value);
            assert_eq!(shown.as_deref(), Ok(want), "{path}");
        }
        let list = Template::parse("{[0].id}").expect("{[0].id}");
        assert_eq!(list.show(&json!([{"id": 4}, {"id": 5}])).as_deref(), Ok("4"));
        let whole = Template::parse("{.}").expect("{.}").show(&json!({"a": 1}));
        assert_eq!(whole.as_deref(), Ok(r#"{"a":1}"#));
    }

    #[test]
    fn lists_end_where_they_end() {
        let value = json!({"items": [1, 2, 3], "none": null, "object": {}, "empty": []});
        let cases = [
            ("{.items[7]}", "array index out of bounds: index 7, length 3"),
            ("{.items[-4]}", "array index out of bounds: index -1, length 3"),
            ("{.items[0,3]}", "array index out of bounds: index 3, length 3"),
            ("{.empty[0]}", "array index out of bounds: index 0, length 0"),
            ("{.items[1:5]}", "array index out of bounds: index 4, length 3"),
            ("{.items[4:5]}", "array index out of bounds: index 4, length 3"),
            ("{.items[2:1]}", "starting index 2 is greater than ending index 1"),
            ("{.object[0]}", "an object is not array or slice"),
            (
                "{.items[9223372036854775807]}",
                "array index out of bounds: index 9223372036854775807, length 3",
            ),
            ("{range .items[8:9]}x{end}", "array index out of bounds: index 8, length 3"),
        ];
        for (path, want) in cases {
            let shown = Template::parse(path).expect(path).show(&value);
            assert_eq!(shown.as_ref().map_err(String::as_str), Err(want), "{path}");
        }
        let fine = Template::parse("{.none[0]}{.items[-3:-1]}").expect("a template");
        assert_eq!(fine.show(&value).as_deref(), Ok("1 2"));
    }

    #[test]
    fn says_what_is_wrong_with_a_path() {
        for bad in [
            "{.a[",
            "{.a",
            "{range .a[*]}",
            "{end}",
            "{.a[x]}",
            "{.a[0:2:0]}",
            "{.a[0,]}",
            "{.a[?(@.b==)]}",
            "{'a}",
            "}",
        ] {
            assert!(Template::parse(bad).is_err(), "{bad}");
        }
    }
}
