//! Which requests are taken at all. One that is refused has changed nothing.

use super::{Cluster, ClusterError};
use crate::request::Request;

impl Cluster {
    /// Whether the request could ever be served, and may wait here until it is.
    pub(super) fn validate(&self, request: &Request) -> Result<(), ClusterError> {
        let (id, tokens) = (request.id, request.token_ids.len());
        if self.requests.contains_key(&id) {
            return Err(ClusterError::DuplicateId(id));
        }
        if tokens == 0 {
            return Err(ClusterError::EmptyPrompt(id));
        }
        let prompt_len = request.prompt_len;
        if prompt_len == 0 || prompt_len as usize > tokens {
            return Err(ClusterError::PromptLen { request: id, prompt_len, tokens });
        }
        let (max_tokens, known) = (request.max_tokens, request.num_known_outputs());
        if max_tokens <= known {
            return Err(ClusterError::MaxTokens { request: id, max_tokens, known });
        }
        if let Some(limit) = self.registry.largest().filter(|limit| tokens as u64 >= *limit) {
            return Err(ClusterError::TooLong { request: id, tokens, limit });
        }
        let (waiting, limit) = (self.queue.len(), self.config.max_queue);
        if waiting >= limit as usize {
            return Err(ClusterError::QueueFull { request: id, waiting, limit });
        }
        Ok(())
    }
}
