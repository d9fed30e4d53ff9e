//! The chat template: messages and tools to one prompt text.

use serde_json::Value;

use super::digest::mix_text;
use super::media::Media;

/// Renders a conversation; everything that a model would see ends up in the text, in order.
pub(crate) fn render(messages: &[Value], tools: Option<&Value>) -> String {
    let mut prompt = String::new();
    if let Some(tools) = tools.filter(|tools| !tools.is_null()) {
        prompt.push_str(&format!("<|tools|>{tools}\n"));
    }
    for message in messages {
        let role = message.get("role").and_then(Value::as_str).unwrap_or("user");
        prompt.push_str(&format!("<|im_start|>{role}\n"));
        push_content(message.get("content"), &mut prompt);
        if let Some(calls) = message.get("tool_calls").filter(|calls| !calls.is_null()) {
            prompt.push_str(&calls.to_string());
        }
        prompt.push_str("<|im_end|>\n");
    }
    prompt.push_str("<|im_start|>assistant\n");
    prompt
}

fn push_content(content: Option<&Value>, prompt: &mut String) {
    match content {
        Some(Value::String(text)) => prompt.push_str(text),
        Some(Value::Array(parts)) => parts.iter().for_each(|part| push_part(part, prompt)),
        _ => {}
    }
}

/// Media become a short placeholder with a hash of their content, as an image costs tokens by size, not by bytes.
fn push_part(part: &Value, prompt: &mut String) {
    match (part.get("text").and_then(Value::as_str), Media::of(part)) {
        (Some(text), _) => prompt.push_str(text),
        (None, Some(media)) => prompt.push_str(&media.placeholder()),
        (None, None) => prompt.push_str(&format!("<part {:016x}>", mix_text(0, &part.to_string()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parts_render_like_plain_text() {
        let plain = render(&[json!({"role": "user", "content": "hi"})], None);
        let parts = render(&[json!({"role": "user", "content": [{"type": "text", "text": "hi"}]})], None);
        assert_eq!(plain, parts);
        assert_eq!(plain, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
    }

    #[test]
    fn tools_and_media_change_the_prompt() {
        let messages =
            [json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]})];
        let other = [json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "b"}}]})];
        assert_ne!(render(&messages, None), render(&other, None));
        assert_ne!(render(&messages, None), render(&messages, Some(&json!([{"type": "function"}]))));
    }
}
