//! Makes the requests of a trace from a seed, in the order in which they are sent: the same everywhere.

use std::collections::VecDeque;
use std::io::{self, Write};

/// Bytes of a token of generated text: three letters and a space.
pub const TOKEN_BYTES: usize = 4;

/// One request. Its prompt is the system prompt of its group, then its conversation as far as it has come:
/// a later turn's prompt begins with the earlier one's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// Seconds after the first request, if requests arrive by themselves and not when a client is free.
    pub at: f64,
    pub group: u32,
    pub system_tokens: u32,
    pub conversation: u32,
    pub conversation_tokens: u32,
    pub output_tokens: u32,
}

impl Request {
    pub fn prompt_tokens(&self) -> u32 {
        self.system_tokens + self.conversation_tokens
    }

    /// Appends the system prompt.
    pub fn system(&self, out: &mut Vec<u8>) {
        words(u64::from(self.group) << 32, self.system_tokens, out);
    }

    /// Appends what follows the system prompt.
    pub fn user(&self, out: &mut Vec<u8>) {
        words(
            1 << 63 | u64::from(self.conversation) << 24,
            self.conversation_tokens,
            out,
        );
    }
}

/// Text of `tokens` tokens; a longer text of the same seed begins with the shorter one.
fn words(seed: u64, tokens: u32, out: &mut Vec<u8>) {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyzaeiost";
    out.reserve(tokens as usize * TOKEN_BYTES);
    for index in 0..u64::from(tokens) {
        let bits = mix(seed + index);
        let letter = |shift: u32| LETTERS[(bits >> shift & 31) as usize];
        out.extend_from_slice(&[letter(0), letter(8), letter(16), b' ']);
    }
}

/// SplitMix64's output function.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// The parameters of a trace.
#[derive(Clone, Debug)]
pub struct Shape {
    pub requests: usize,
    pub seed: u64,
    /// Different system prompts; the k-th most popular is asked for in proportion to 1 / k^`skew`.
    pub groups: usize,
    pub skew: f64,
    pub system_tokens: u32,
    /// Conversations going on at a time. Each request continues one of them, none before this many other
    /// requests were sent: its last answer has come by then.
    pub conversations: usize,
    pub turn_gap: usize,
    /// Turns of a conversation, least and most.
    pub turns: (u32, u32),
    /// Tokens a turn adds, least and most: the answer before it and the new question.
    pub turn_tokens: (u32, u32),
    pub output_tokens: (u32, u32),
    /// KV cache of the whole fleet for which the trace is meant: room for all that is in use, not for a copy
    /// of it on every worker.
    pub kv_tokens: usize,
    /// Requests a second, all together, if they arrive by themselves.
    pub rate: f64,
    /// Every `burst.0` seconds the rate is `burst.2` times as high for `burst.1` seconds.
    pub burst: (f64, f64, f64),
}

impl Shape {
    /// Conversations of several turns under system prompts of very different popularity.
    pub fn multi_turn() -> Shape {
        Shape {
            requests: 10_000,
            seed: 2,
            groups: 40,
            skew: 1.1,
            system_tokens: 1360,
            conversations: 600,
            turn_gap: 64,
            turns: (21, 41),
            turn_tokens: (37, 75),
            output_tokens: (16, 128),
            kv_tokens: 445_000,
            rate: 40.0,
            burst: (1.0, 0.0, 1.0),
        }
    }

    /// Single questions behind long shared prefixes.
    pub fn shared_prefixes() -> Shape {
        Shape {
            groups: 228,
            skew: 0.74,
            system_tokens: 828,
            conversations: 65,
            turns: (1, 1),
            turn_tokens: (46, 94),
            kv_tokens: 225_000,
            ..Shape::multi_turn()
        }
    }

    pub fn make(&self) -> Vec<Request> {
        let mut rng = fastrand::Rng::with_seed(self.seed);
        let popularity = Zipf::new(self.groups, self.skew);
        let mut started = 0;
        let mut start = |rng: &mut fastrand::Rng| {
            started += 1;
            let group = popularity.draw(rng);
            let turns = rng.u32(self.turns.0..=self.turns.1);
            Conversation {
                id: started,
                group,
                turns,
                tokens: 0,
            }
        };
        // Those going on when the trace begins are in the middle of their turns.
        let mut ready: Vec<Conversation> = (0..self.conversations)
            .map(|_| {
                let whole = start(&mut rng);
                Conversation {
                    turns: rng.u32(1..=whole.turns),
                    ..whole
                }
            })
            .collect();
        let mut asking: VecDeque<Conversation> = VecDeque::new();
        let mut at = 0.0;
        let mut requests = Vec::with_capacity(self.requests);
        while requests.len() < self.requests {
            let next = rng.usize(..ready.len());
            let mut conversation = ready.swap_remove(next);
            conversation.turns -= 1;
            conversation.tokens += rng.u32(self.turn_tokens.0..=self.turn_tokens.1);
            let (every, lasting, times) = self.burst;
            let rate = self.rate * if at % every < lasting { times } else { 1.0 };
            at -= (1.0 - rng.f64()).ln() / rate;
            requests.push(Request {
                at,
                group: conversation.group,
                system_tokens: self.system_tokens,
                conversation: conversation.id,
                conversation_tokens: conversation.tokens,
                output_tokens: rng.u32(self.output_tokens.0..=self.output_tokens.1),
            });
            asking.push_back(if conversation.turns == 0 {
                start(&mut rng)
            } else {
                conversation
            });
            if asking.len() > self.turn_gap.min(self.conversations - 1) {
                ready.extend(asking.pop_front());
            }
        }
        requests
    }
}

struct Conversation {
    id: u32,
    group: u32,
    turns: u32,
    tokens: u32,
}

/// Draws 0..n, k in proportion to 1 / (k + 1)^skew.
struct Zipf {
    cumulative: Vec<f64>,
}

impl Zipf {
    fn new(count: usize, skew: f64) -> Zipf {
        let mut sum = 0.0;
        let mut add = |rank: usize| {
            sum += 1.0 / (rank as f64).powf(skew);
            sum
        };
        Zipf {
            cumulative: (1..=count).map(&mut add).collect(),
        }
    }

    fn draw(&self, rng: &mut fastrand::Rng) -> u32 {
        let last = self.cumulative.len() - 1;
        let point = rng.f64() * self.cumulative[last];
        self.cumulative
            .partition_point(|&upto| upto <= point)
            .min(last) as u32
    }
}

/// Writes one JSON object a line: the fields of [`Request`], and with them its texts as `system` and `user`.
pub fn write(requests: &[Request], out: &mut impl Write) -> io::Result<()> {
    let text = |append: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = Vec::new();
        append(&mut bytes);
        String::from_utf8(bytes).expect("letters and spaces")
    };
    for request in requests {
        let line = serde_json::json!({
            "at": request.at,
            "group": request.group,
            "conversation": request.conversation,
            "system_tokens": request.system_tokens,
            "conversation_tokens": request.conversation_tokens,
            "output_tokens": request.output_tokens,
            "system": text(&|out| request.system(out)),
            "user": text(&|out| request.user(out)),
        });
        writeln!(out, "{line}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(request: &Request) -> Vec<u8> {
        let mut prompt = Vec::new();
        request.system(&mut prompt);
        request.user(&mut prompt);
        prompt
    }

    #[test]
    fn a_later_turn_extends_the_earlier_one_and_comes_after_the_gap() {
        let shape = Shape::multi_turn();
        let requests = shape.make();
        assert_eq!(requests, shape.make());
        let mut last: std::collections::HashMap<u32, usize> = Default::default();
        let mut continued = 0;
        for (index, request) in requests.iter().enumerate() {
            if let Some(before) = last.insert(request.conversation, index) {
                assert!(index - before > shape.turn_gap);
                assert!(prompt(request).starts_with(&prompt(&requests[before])));
                continued += 1;
            }
        }
        assert!(continued > requests.len() / 2);
        assert!(requests.is_sorted_by(|a, b| a.at < b.at));
    }

    #[test]
    fn groups_share_their_system_prompt_and_nothing_else() {
        let requests = Shape::shared_prefixes().make();
        let (mut same, mut different) = (0, 0);
        for pair in requests.windows(2) {
            let (one, two) = (prompt(&pair[0]), prompt(&pair[1]));
            let shared = one.iter().zip(&two).take_while(|(a, b)| a == b).count();
            let system = pair[0].system_tokens as usize * TOKEN_BYTES;
            if pair[0].group == pair[1].group {
                assert!((system..system + 16).contains(&shared));
                same += 1;
            } else {
                assert!(shared < 16);
                different += 1;
            }
        }
        assert!(same > 100 && different > 1000);
    }
}
