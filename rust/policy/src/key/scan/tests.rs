use super::*;

fn key(body: &str) -> String {
    let mut key = Vec::new();
    scan(body.as_bytes(), &mut key);
    String::from_utf8(key).unwrap().replace('\u{1e}', "|")
}

#[test]
fn finds_model_user_and_prompt_anywhere() {
    let body = br#" {"n": [1, {"prompt": "no"}], "prompt" : "say \"hi\" \u00e9", "user":"u1", "model":"m", "x": null}"#;
    let mut text = Vec::new();
    let found = scan(body, &mut text);
    assert_eq!(
        found,
        Scan {
            model: Cow::Borrowed(b"m"),
            user: b"u1",
            ..Scan::default()
        }
    );
    assert_eq!(text, br#"say \"hi\" \u00e9"#);
}

#[test]
fn a_model_is_the_same_however_it_is_spelled() {
    let model = |body: &str| scan(body.as_bytes(), &mut Vec::new()).model.into_owned();
    for spelled in ["org/é\"", r#"org\/\u00e9""#, r#"\u006frg/\u00E9""#] {
        assert_eq!(
            model(&format!("{{\"model\":\"{spelled}}}")),
            "org/é".as_bytes()
        );
    }
    assert_eq!(model(r#"{"model":"a\x"}"#), br"a\x");
}

#[test]
fn messages_give_roles_and_text_in_any_order_and_spacing() {
    let one =
        key(r#"{"messages":[{"role":"system","content":"S"},{"role":"user","content":"Hello"}]}"#);
    let two = key(
        r#"{ "messages" : [ {"content" : "S", "role" : "system"} , {"content":[{"type":"text","text":"Hello"}],"role":"user"} ] }"#,
    );
    assert_eq!(one, "|sS|uHello");
    assert_eq!(one, two);
}

#[test]
fn a_longer_conversation_extends_the_key() {
    let one = key(r#"{"messages":[{"role":"user","content":"A"}]}"#);
    let two = key(
        r#"{"messages":[{"role":"user","content":"A"},{"role":"assistant","content":"B"}],"stream":true}"#,
    );
    assert!(two.starts_with(&one));
}

#[test]
fn media_is_hashed_whatever_its_size() {
    let part = |data: &str| {
        key(&format!(
            r#"{{"messages":[{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"{data}"}}}},{{"type":"text","text":"what?"}}]}}]}}"#
        ))
    };
    let (one, two) = (part(&"a".repeat(100_000)), part(&"b".repeat(100_000)));
    assert_eq!(one.len(), "|u".len() + 17 + "what?".len());
    assert_ne!(one, two);
    assert_eq!(one, part(&"a".repeat(100_000)));
}

#[test]
fn what_a_model_sees_first_comes_first() {
    let body = r#"{"messages":[{"role":"user","content":"Q"}],"images":["a.png"],"tools":[{"name":"t"}],"system":[{"type":"text","text":"S","cache_control":{"type":"ephemeral"}}],"lora_path":"ad"}"#;
    let key = key(body);
    let (before, after) = key.split_once('\u{1d}').unwrap();
    assert_eq!(before, "\u{1f}\"ad\"|S[{\"name\":\"t\"}]");
    assert_eq!(&after[16..], "|uQ");
}

#[test]
fn tools_stand_behind_the_system_message_as_in_templates() {
    let ask = |role: &str, tool: &str| {
        key(&format!(
            r#"{{"tools":[{tool}],"documents":["d"],"messages":[{{"role":"{role}","content":"S"}},{{"role":"user","content":"Q"}}]}}"#
        ))
    };
    assert_eq!(ask("system", "1"), "|sS[1][\"d\"]|uQ");
    assert_eq!(ask("developer", "2"), "|dS[2][\"d\"]|uQ");
    assert_eq!(ask("user", "1"), "[1][\"d\"]|uS|uQ");
    assert_eq!(key(r#"{"tools":[1],"prompt":"p"}"#), "[1]p");
    assert_eq!(key(r#"{"tools":[1],"prompt":[1, 2]}"#), "[1][1,2]");
    assert_eq!(key(r#"{"tools":[1]}"#), "[1]");
}

#[test]
fn what_a_template_is_told_keeps_prompts_apart() {
    let ask = |field: &str| key(&format!(r#"{{{field}"prompt":"p"}}"#));
    let plain = ["", r#""tool_choice":"auto","#, r#""reasoning":null,"#];
    assert!(plain.iter().all(|field| ask(field) == "p"));
    let mut keys = std::collections::BTreeSet::new();
    for field in [
        r#""chat_template_kwargs":{"enable_thinking":false},"#,
        r#""chat_template_kwargs":{"enable_thinking":true},"#,
        r#""reasoning_effort":"low","#,
        r#""reasoning_effort":"high","#,
        r#""reasoning":{"effort":"high"},"#,
        r#""tool_choice":"none","#,
        r#""tool_choice":"required","#,
        r#""documents":["d"],"#,
    ] {
        let found = ask(field);
        assert!(found.len() > 1 && found.ends_with('p'), "{found}");
        assert!(keys.insert(found), "{field}");
    }
    // Whatever their order in the body.
    let (one, two) = (r#""tool_choice":"none","#, r#""reasoning_effort":"low","#);
    assert_eq!(ask(&format!("{one}{two}")), ask(&format!("{two}{one}")));
}

#[test]
fn adapters_are_kept_apart_from_the_first_byte() {
    let with = |adapter: &str| key(&format!(r#"{{"text":"a prompt","lora_path":{adapter}}}"#));
    assert_eq!(with("null"), "a prompt");
    assert_ne!(with("\"one\""), with("\"two\""));
    assert!(with("[\"one\",\"two\"]").ends_with("a prompt"));
}

#[test]
fn salts_keep_prompts_apart_and_usage_from_being_compared() {
    let found = |body: &str| scan(body.as_bytes(), &mut Vec::new()).bypasses_cache;
    assert_eq!(
        key(r#"{"prompt":"p","cache_salt":"s","lora_path":"ad"}"#),
        "\u{1c}\"s\"\u{1f}\"ad\"p"
    );
    for field in [
        r#""cache_salt":"s""#,
        r#""extra_key":"k""#,
        r#""logprobs":1"#,
        r#""logprobs":true"#,
        r#""prompt_logprobs":5"#,
        r#""echo":true"#,
        r#""return_logprob":true"#,
    ] {
        assert!(found(&format!(r#"{{"prompt":"p",{field}}}"#)), "{field}");
    }
    for field in [r#""logprobs":false"#, r#""echo":null"#, r#""n":2"#] {
        assert!(!found(&format!(r#"{{"prompt":"p",{field}}}"#)), "{field}");
    }
}

#[test]
fn what_is_cut_off_says_so() {
    let body = br#"{"prompt":"once upon a time"}"#;
    for end in 0..=body.len() {
        let found = scan(&body[..end], &mut Vec::new());
        assert_eq!(found.is_cut, end < body.len(), "{end}");
    }
}

#[test]
fn responses_and_tool_calls() {
    let body = r#"{"instructions":"I","input":[{"role":"user","content":[{"type":"input_text","text":"A"},{"type":"input_image","image_url":"http://x/y"}]},{"type":"function_call","name":"f","arguments":"{}"},{"type":"function_call_output","output":"42"}]}"#;
    let found = key(body);
    assert!(
        found.starts_with("|I|uA\u{1d}") && found.ends_with("|{}|42"),
        "{found}"
    );
    let calls =
        key(r#"{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}]}"#);
    assert_eq!(calls, "|a[{\"id\":\"1\"}]");
}

#[test]
fn every_item_of_a_list_of_media_counts_by_itself() {
    let list = |items: &str| key(&format!(r#"{{"prompt":"p","images":{items}}}"#));
    let (a, b) = (
        format!("\"{}\"", "a".repeat(5000)),
        format!("\"data:image/png;base64,{}\"", "b".repeat(5000)),
    );
    let (one, two) = (
        list(&format!("[{a}]")),
        list(&format!("[{a}, {{\"url\":{b}}}]")),
    );
    assert_eq!((one.len(), two.len()), (18, 35));
    assert_eq!(one[..17], two[..17]);
    assert_eq!(list(&a), one);
    assert_eq!(list("null"), "p");
}

#[test]
fn a_session_is_the_cache_key_before_the_user() {
    let found = scan(br#"{"prompt_cache_key":"k","user":"u"}"#, &mut Vec::new());
    assert_eq!(found.user, b"k");
    let audio = br#"{"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"UklG","format":"wav"}}]}]}"#;
    assert!(scan(audio, &mut Vec::new()).has_media);
}

#[test]
fn token_ids_and_lists_of_prompts() {
    assert_eq!(key(r#"{"prompt":[1, 22,3]}"#), "[1,22,3]");
    assert_eq!(key(r#"{"prompt":[[1, 2], [3]]}"#), "[[1,2],[3]]");
    assert_eq!(key(r#"{"prompt_token_ids": [ 1,2 ]}"#), "[1,2]");
    assert_eq!(key(r#"{"input_ids":[1,2]}"#), "[1,2]");
    assert_eq!(key(r#"{"prompt":["a","b"]}"#), "|a|b");
}

#[test]
fn bodies_that_are_cut_or_not_json_give_what_is_there() {
    assert_eq!(key(r#"{"prompt":"once upon a ti"#), "once upon a ti");
    assert_eq!(
        key(r#"{"messages":[{"role":"user","content":"cut of"#),
        "|ucut of"
    );
    for body in [
        "",
        "{",
        "[1]",
        "{\"prompt\"",
        "{\"prompt\":}",
        "}{",
        "{\"a\":]",
        "\"\\",
        "{\"a\":\"\\",
        "{\"a\":[[[[",
    ] {
        assert_eq!(key(body), "", "{body}");
    }
}

#[test]
fn deep_nesting_is_no_danger() {
    let deep = format!(
        "{{\"x\":{}{},\"prompt\":\"p\"}}",
        "[".repeat(200_000),
        "]".repeat(200_000)
    );
    assert_eq!(key(&deep), "p");
}

#[test]
fn every_cut_of_a_body_is_read_without_a_panic() {
    let body = br#"{"model":"m\\","messages":[{"role":"user","content":[{"type":"text","text":"a\"b"},{"image_url":{"url":"x"}}]}],"n":-1.5e3}"#;
    for end in 0..=body.len() {
        scan(&body[..end], &mut Vec::new());
    }
}

#[test]
fn random_bodies_are_read_without_a_panic() {
    let mut rng = fastrand::Rng::with_seed(9);
    let words = [
        "{",
        "}",
        "[",
        "]",
        "\"",
        ",",
        ":",
        "\\",
        " ",
        "1",
        "null",
        "\"messages\":",
        "\"content\":",
        "\"images\":",
        "\"url\":",
        "\"prompt\":[",
        "\"lora_path\":",
        "\"data:;base64,",
        "\"role\":\"u\"",
        "\u{e9}",
    ];
    for _ in 0..50_000 {
        let mut body = "{".to_owned();
        (0..rng.usize(..24)).for_each(|_| body += words[rng.usize(..words.len())]);
        let mut text = Vec::new();
        scan(body.as_bytes(), &mut text);
        assert!(text.len() <= 2 * body.len() + 20 * body.matches(['{', '[', '"']).count());
    }
}

#[test]
fn a_prompt_of_token_ids_is_read_if_nothing_else_counts() {
    fn ids(body: &str) -> Vec<u32> {
        let mut ids = vec![7];
        let found = scan(body.as_bytes(), &mut Vec::new());
        read_token_ids(found.token_ids, found.is_cut, &mut ids);
        ids
    }
    for body in [
        r#"{"input_ids": [1, 23, 456], "stream": true}"#,
        r#"{"model": "m", "prompt":[1,23,456]}"#,
        "{\"prompt\": [ 1,\n23 , 456 ]}",
    ] {
        assert_eq!(ids(body), [1, 23, 456], "{body}");
    }
    assert_eq!(ids(r#"{"prompt": [1, 23, 4"#), [1, 23]);
    assert_eq!(ids(r#"{"prompt": [1, 23,"#), [1, 23]);
    for body in [
        r#"{"prompt": "1 2"}"#,
        r#"{"prompt": []}"#,
        r#"{"prompt": [[1, 2], [3]]}"#,
        r#"{"prompt": [1, -2]}"#,
        r#"{"prompt": [1.5, 2]}"#,
        r#"{"prompt": ["#,
        r#"{"prompt": [1, 2], "cache_salt": "x"}"#,
        r#"{"input_ids": [1, 2], "lora_path": "x"}"#,
        r#"{"input_ids": [1, 2], "image_data": "x"}"#,
        r#"{"messages": [{"role": "user", "content": "1"}]}"#,
        "",
    ] {
        assert!(ids(body).is_empty(), "{body}");
    }
}
