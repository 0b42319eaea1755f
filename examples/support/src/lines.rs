//! [`Lines`]: the lines of an input that may be anything.

use std::io;

use tokio::io::{AsyncBufReadExt, BufReader, Stdin, stdin};

/// The longest line, in bytes.
const LONGEST: usize = 64 * 1024;

/// Reads lines of any bytes. A line of more than 64 KiB is skipped, which it says on stderr.
pub struct Lines {
    input: BufReader<Stdin>,
    line: Vec<u8>,
    number: u64,
}

impl Lines {
    /// Reads stdin, and says on stderr what it expects there.
    pub fn of_stdin(expected: &str) -> Self {
        eprintln!("reading messages from stdin, a line {expected} each (Ctrl-D ends the input)");
        Self { input: BufReader::new(stdin()), line: Vec::new(), number: 0 }
    }

    /// Returns the next line with its number, or `None` at the end. If the future is dropped, the next
    /// call goes on where it was.
    pub async fn next(&mut self) -> io::Result<Option<(u64, Vec<u8>)>> {
        loop {
            let read = self.input.fill_buf().await?;
            let end = read.iter().position(|byte| *byte == b'\n');
            let (is_over, used) = (read.is_empty(), end.map_or(read.len(), |end| end + 1));
            // Of a line that is too long, no more is kept than shows it.
            if self.line.len() <= LONGEST {
                self.line.extend_from_slice(&read[..end.unwrap_or(used)]);
            }
            self.input.consume(used);
            match end {
                None if !is_over => continue,
                None if self.line.is_empty() => return Ok(None),
                _ => self.number += 1,
            }
            let line = std::mem::take(&mut self.line);
            if line.len() <= LONGEST {
                return Ok(Some((self.number, line)));
            }
            eprintln!("line {} is skipped: it is longer than {LONGEST} bytes", self.number);
        }
    }
}
