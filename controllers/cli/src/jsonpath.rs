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

    /// What it says of a value.
    pub fn show(&self, value: &Value) -> String {
        let mut shown = String::new();
        show(&self.0, value, &mut shown);
        shown
    }
}

fn show(parts: &[Part], value: &Value, shown: &mut String) {
    for part in parts {
        match part {
            Part::Text(text) => shown.push_str(text),
            Part::Path(path) => {
                let found: Vec<String> = path.find(value).into_iter().map(text).collect();
                shown.push_str(&found.join(" "));
            }
            Part::Range(path, inner) => {
                for one in path.find(value) {
                    show(inner, one, shown);
                }
            }
        }
    }
}

impl Path {
    fn find<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        self.0.iter().fold(vec![value], |found, step| {
            found.into_iter().flat_map(|value| step.of(value)).collect()
        })
    }
}

impl Step {
    fn of<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match (self, value) {
            (Self::Members(names), value) => names.iter().filter_map(|n| value.get(n)).collect(),
            (Self::Indices(indices), Value::Array(list)) => {
                let at = |index: &i64| place(*index, list.len()).and_then(|at| list.get(at));
                indices.iter().filter_map(at).collect()
            }
            (Self::Slice(from, to, step), Value::Array(list)) => {
                let at = |index: i64| place(index, list.len()).unwrap_or(0).min(list.len());
                let (from, to) = (from.map_or(0, at), to.map_or(list.len(), at));
                list.get(from..to).unwrap_or_default().iter().step_by((*step).max(1)).collect()
            }
            (Self::Each, value) => children(value),
            (Self::Everywhere, value) => {
                let mut found = Vec::new();
                everywhere(value, &mut found, 0);
                found
            }
            (Self::Filter(path, test), value) => {
                let passes = |one: &&Value| {
                    let found = path.find(one);
                    match test {
                        None => !found.is_empty(),
                        Some((compare, wanted)) => {
                            found.iter().any(|found| compare.holds(found, wanted))
                        }
                    }
                };
                children(value).into_iter().filter(passes).collect()
            }
            _ => Vec::new(),
        }
    }
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
fn place(index: i64, length: usize) -> Option<usize> {
    let from_end = i64::try_from(length).ok()?.checked_add(index)?;
    usize::try_from(if index < 0 { from_end } else { index }).ok()
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
            ("{.status.items[7].id}", ""),
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
        ];
        for (path, want) in cases {
            assert_eq!(Template::parse(path).expect(path).show(&value), want, "{path}");
        }
        let list = Template::parse("{[0].id}").expect("{[0].id}");
        assert_eq!(list.show(&json!([{"id": 4}, {"id": 5}])), "4");
        let whole = Template::parse("{.}").expect("{.}").show(&json!({"a": 1}));
        assert_eq!(whole, r#"{"a":1}"#);
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
