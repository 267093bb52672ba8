/**
 * Where the errors of a bridged model come from. Which provider is behind it is not known, so that the words of all of
 * them count.
 */
import type * as Redacted from "effect/Redacted"
import type * as Errors from "../../adapters/internal/errors.ts"

const words: Errors.Words = [
  [/insufficient_(user_)?quota|billing/i, "quota_exceeded"],
  [/context_length|context_size|context_window|too_many_prompt_tokens/i, "context_length_exceeded"],
  [/content_filter|content_policy|ResponsibleAIPolicy/i, "content_filter"],
  [/rate_limit|RateLimitReached|RESOURCE_EXHAUSTED/i, "rate_limited"],
  [/UNAUTHENTICATED|PERMISSION_DENIED/, "authentication_failed"],
  [/UNAVAILABLE|overloaded/, "provider_unavailable"],
  [/DEADLINE_EXCEEDED/, "timeout"]
]

export const make = (provider: string, secrets: ReadonlyArray<Redacted.Redacted<string>>): Errors.Origin => ({
  provider,
  secrets,
  requestId: undefined,
  words
})
