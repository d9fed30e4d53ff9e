//! Fleets whose media are encoded apart.

use anyhow::Result;

use super::Fleet;
use crate::engine::Engine;

impl Fleet {
    /// The same fleet with so many encoders more.
    ///
    /// # Errors
    /// If no ports can be had.
    pub async fn with_encoders(mut self, encode: usize) -> Result<Self> {
        for _ in 0..encode {
            self.encode.push(Engine::encode().start().await?);
        }
        Ok(self)
    }

    /// So many engines that compute prompts and generate, behind so many encoders. They are in `decode`, but a router
    /// that is told of them must be told that they are both.
    ///
    /// # Errors
    /// If no ports can be had.
    pub async fn of_consumers(encode: usize, consumers: usize) -> Result<Self> {
        let mut fleet = Self::start(0, 0).await?.with_encoders(encode).await?;
        for _ in 0..consumers {
            fleet.decode.push(Engine::both().without_connector().start().await?);
        }
        Ok(fleet)
    }

    /// Encodings that no consumer has fetched.
    pub fn encodings(&self) -> usize {
        self.encode.iter().map(Engine::encodings).sum()
    }
}
