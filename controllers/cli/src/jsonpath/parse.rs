//! Reads `JSONPath` templates.

use serde_json::Value;

use super::{Compare, Part, Path, Step};

/// Ranges may be in ranges only so deep.
const DEEPEST: usize = 16;

pub(super) fn template(text: &str) -> Result<Vec<Part>, String> {
    let text = text.trim();
    if !text.contains(['{', '}']) {
        return Ok(vec![Part::Path(whole_path(text)?)]);
    }
    let mut rest = text;
    let parts = parts(&mut rest, 0)?;
    if rest.is_empty() { Ok(parts) } else { Err(format!("{text:?}: {{end}} without {{range}}")) }
}

/// Up to the end, or to the `{end}` of the range in which this is.
fn parts(rest: &mut &str, depth: usize) -> Result<Vec<Part>, String> {
    if depth > DEEPEST {
        return Err("too many ranges in ranges".into());
    }
    let mut found = Vec::new();
    while !rest.is_empty() {
        let end = rest.find(['{', '}']).unwrap_or(rest.len());
        if end > 0 {
            found.push(Part::Text(rest[..end].into()));
            *rest = &rest[end..];
            continue;
        }
        let (inner, after) = block(rest)?;
        if inner == "end" {
            if depth > 0 {
                *rest = after;
            }
            return if depth > 0 { Ok(found) } else { Err("{end} without {range}".into()) };
        }
        *rest = after;
        if let Some(path) = inner.strip_prefix("range ") {
            let path = whole_path(path.trim())?;
            found.push(Part::Range(path, parts(rest, depth + 1)?));
        } else if let Some(literal) = quoted(inner) {
            found.push(Part::Text(literal));
        } else {
            found.push(Part::Path(whole_path(inner)?));
        }
    }
    if depth > 0 { Err("{range} without {end}".into()) } else { Ok(found) }
}

/// What is in the braces with which `text` begins, and what follows them.
fn block(text: &str) -> Result<(&str, &str), String> {
    let inner =
        text.strip_prefix('{').ok_or_else(|| format!("{text:?}: a brace that nothing opened"))?;
    let mut quote = None;
    let mut escaped = false;
    for (at, character) in inner.char_indices() {
        match (quote, character) {
            _ if escaped => escaped = false,
            (_, '\\') => escaped = true,
            (Some(open), _) if character == open => quote = None,
            (None, '"' | '\'') => quote = Some(character),
            (None, '}') => return Ok((inner[..at].trim(), &inner[at + 1..])),
            _ => {}
        }
    }
    Err(format!("{text:?}: {{ without }}"))
}

/// The text in quotes, if `text` is just that.
fn quoted(text: &str) -> Option<String> {
    let open = text.chars().next().filter(|first| matches!(first, '"' | '\''))?;
    let inner = text.strip_prefix(open)?.strip_suffix(open)?;
    let mut literal = String::new();
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        literal.push(match character {
            '\\' => match characters.next()? {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                other => other,
            },
            other if other == open => return None,
            other => other,
        });
    }
    Some(literal)
}

fn whole_path(text: &str) -> Result<Path, String> {
    let inner = text.strip_prefix(['$', '@']).unwrap_or(text);
    let (mut steps, mut rest) = (Vec::new(), inner);
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('[') {
            let end = closing(after).ok_or_else(|| format!("{text:?}: [ without ]"))?;
            steps.push(bracket(&after[..end]).map_err(|why| format!("{text:?}: {why}"))?);
            rest = &after[end + 1..];
            continue;
        }
        let mut after =
            rest.strip_prefix('.').ok_or_else(|| format!("{text:?}: a path begins with a dot"))?;
        if let Some(deeper) = after.strip_prefix('.') {
            steps.push(Step::Everywhere);
            after = deeper;
        }
        let (name, left) = name(after);
        match name.as_str() {
            "" => {}
            "*" => steps.push(Step::Each),
            _ => steps.push(Step::Members(vec![name])),
        }
        rest = left;
    }
    Ok(Path(steps))
}

/// A member's name, in which dots are escaped, and what follows it.
fn name(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '.' | '[' => return (name, &text[at..]),
            '\\' => name.extend(characters.next().map(|(_, escaped)| escaped)),
            other => name.push(other),
        }
    }
    (name, "")
}

/// Where the bracket ends that is open.
fn closing(text: &str) -> Option<usize> {
    let mut quote = None;
    let mut depth = 0;
    for (at, character) in text.char_indices() {
        match (quote, character) {
            (Some(open), _) if character == open => quote = None,
            (None, '"' | '\'') => quote = Some(character),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(at),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    None
}

fn bracket(text: &str) -> Result<Step, String> {
    let text = text.trim();
    if text == "*" {
        return Ok(Step::Each);
    }
    let indices = text.split(',').map(|index| index.trim().parse());
    if let Ok(indices) = indices.collect() {
        return Ok(Step::Indices(indices));
    }
    if let Some(test) = text.strip_prefix("?(").and_then(|text| text.strip_suffix(')')) {
        return filter(test.trim());
    }
    if text.contains(':') && !text.starts_with(['"', '\'']) {
        let wrong = || format!("[{text}] is no slice [FROM:TO:STEP]");
        let number = |part: Option<&&str>| match part.map(|part| part.trim()) {
            None | Some("") => Ok(None),
            Some(part) => part.parse().map(Some).map_err(|_| wrong()),
        };
        let ends: Vec<&str> = text.split(':').collect();
        let step = usize::try_from(number(ends.get(2))?.unwrap_or(1)).unwrap_or(0);
        if step == 0 || ends.len() > 3 {
            return Err(wrong());
        }
        return Ok(Step::Slice(number(ends.first())?, number(ends.get(1))?, step));
    }
    let names: Option<Vec<String>> = text.split(',').map(|name| quoted(name.trim())).collect();
    names.map(Step::Members).ok_or_else(|| {
        format!(
            "[{text}] is neither a number, nor *, nor a quoted name, nor a filter ?(@.a==\"b\")"
        )
    })
}

fn filter(text: &str) -> Result<Step, String> {
    let operators = [
        ("==", Compare::Equal),
        ("!=", Compare::Unequal),
        ("<=", Compare::AtMost),
        (">=", Compare::AtLeast),
        ("<", Compare::Less),
        (">", Compare::More),
    ];
    // The first one counts that is not in quotes.
    let sign = unquoted(text).find_map(|at| {
        let here = &text[at..];
        let found = operators.iter().find(|(sign, _)| here.starts_with(sign));
        found.map(|(sign, compare)| (&text[..at], &here[sign.len()..], *compare))
    });
    let Some((path, wanted, compare)) = sign else {
        return Ok(Step::Filter(whole_path(text)?, None));
    };
    let wanted = wanted.trim();
    let value = match quoted(wanted) {
        Some(text) => Value::String(text),
        None => serde_json::from_str(wanted)
            .map_err(|_| format!("{wanted:?} is neither quoted nor a number"))?,
    };
    Ok(Step::Filter(whole_path(path.trim())?, Some((compare, value))))
}

/// Where characters are that no quotes surround.
fn unquoted(text: &str) -> impl Iterator<Item = usize> {
    let mut quote = None;
    text.char_indices().filter_map(move |(at, character)| match quote {
        Some(open) if character == open => {
            quote = None;
            None
        }
        Some(_) => None,
        None if matches!(character, '"' | '\'') => {
            quote = Some(character);
            None
        }
        None => Some(at),
    })
}
