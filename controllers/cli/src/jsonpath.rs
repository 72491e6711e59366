//! The part of `JSONPath` that people use: `{.a.b}`, `{.a[0]}`, `{.a[*].b}`, `{["odd.name"]}`.

use serde_json::Value;

/// Where to look in an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path(Vec<Step>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Member(String),
    Index(usize),
    Each,
}

impl Path {
    /// Reads a path, with or without braces.
    pub fn parse(text: &str) -> Result<Self, String> {
        let inner =
            text.trim().trim_start_matches('{').trim_end_matches('}').trim_start_matches('$');
        let (mut steps, mut rest) = (Vec::new(), inner);
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('[') {
                let (index, after) =
                    after.split_once(']').ok_or_else(|| format!("{text:?}: [ without ]"))?;
                rest = after;
                let name = index.trim_matches(['"', '\'']);
                steps.push(match index.parse() {
                    Ok(number) => Step::Index(number),
                    Err(_) if index == "*" => Step::Each,
                    Err(_) if name.len() < index.len() => Step::Member(name.into()),
                    Err(_) => {
                        return Err(format!(
                            "{text:?}: [{index}] is neither a number, nor *, nor a quoted name"
                        ));
                    }
                });
                continue;
            }
            let after = rest
                .strip_prefix('.')
                .ok_or_else(|| format!("{text:?}: a path begins with a dot"))?;
            let end = after.find(['.', '[']).unwrap_or(after.len());
            match &after[..end] {
                "" => {}
                "*" => steps.push(Step::Each),
                name => steps.push(Step::Member(name.into())),
            }
            rest = &after[end..];
        }
        Ok(Self(steps))
    }

    /// What is there, separated by blanks.
    pub fn show(&self, value: &Value) -> String {
        let found = self.0.iter().fold(vec![value], |found, step| {
            found.into_iter().flat_map(|value| step.of(value)).collect()
        });
        found.into_iter().map(crate::output::text).collect::<Vec<_>>().join(" ")
    }
}

impl Step {
    fn of<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match (self, value) {
            (Self::Member(name), value) => value.get(name).into_iter().collect(),
            (Self::Index(index), value) => value.get(index).into_iter().collect(),
            (Self::Each, Value::Array(items)) => items.iter().collect(),
            (Self::Each, Value::Object(members)) => members.values().collect(),
            (Self::Each, _) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Path;
    use serde_json::json;

    #[test]
    fn finds_what_people_look_for() {
        let value = json!({"status": {"items": [{"id": 1}, {"id": 2}]}, "odd.name": "x"});
        let cases = [
            ("{.status.items[1].id}", "2"),
            ("{.status.items[*].id}", "1 2"),
            ("{['odd.name']}", "x"),
            ("{.status.none}", ""),
            ("{.}", r#"{"status":{"items":[{"id":1},{"id":2}]},"odd.name":"x"}"#),
        ];
        for (path, want) in cases {
            assert_eq!(Path::parse(path).expect(path).show(&value), want, "{path}");
        }
        assert!(Path::parse("{.a[").is_err() && Path::parse("a").is_err());
    }
}
