/**
 * The files that a model would not fetch itself. Models of the AI SDK tell which addresses they read; what stands at any
 * other has to be sent, and is loaded by whoever the caller names for it.
 */
import * as Effect from "effect/Effect"
import * as Base64 from "effect/encoding/Base64"
import type * as Adapter from "../../Adapter.ts"
import * as Errors from "../../adapters/internal/errors.ts"
import type * as Message from "../../Message.ts"
import type { LanguageModel } from "./aiSdkModel.ts"
import type * as AiSdkPrompt from "./aiSdkPrompt.ts"
import * as Layout from "./layout.ts"
import * as Sources from "./media.ts"

/** Loads a file from an address that the model does not read itself. */
type Download = (
  url: URL
) => Effect.Effect<{ readonly data: Uint8Array | string; readonly mediaType?: string }, unknown>

type Supported = Readonly<Record<string, ReadonlyArray<RegExp>>>

/** What stands at the addresses in the messages that the model does not read, by address. */
export const load = (
  model: LanguageModel,
  download: Download,
  messages: ReadonlyArray<Message.Message>,
  origin: Errors.Origin
): Effect.Effect<AiSdkPrompt.Writing["loaded"], Adapter.AdapterError> =>
  Effect.gen(function*() {
    const addressed = messages.flatMap(addresses)
    if (addressed.length === 0) return new Map()
    const supported: Supported = yield* Effect.tryPromise(() => Promise.resolve(model.supportedUrls ?? {})).pipe(
      Effect.orElseSucceed(() => ({}))
    )
    const missing = new Map(
      addressed.flatMap((source) => isRead(supported, source) ? [] : [[source.content.href, source] as const])
    )
    const loaded = yield* Effect.forEach(missing.values(), ({ content, mediaType }) =>
      Effect.map(
        Effect.mapError(
          download(content),
          () =>
            Errors.make(origin, "invalid_request", `the file at ${content.origin}${content.pathname} cannot be loaded`)
        ),
        ({ data, mediaType: told }) =>
          [content.href, {
            mediaType: told ?? mediaType,
            content: typeof data === "string" ? data : Base64.encode(data)
          }] as const
      ), { concurrency: 4 })
    return new Map(loaded)
  })

interface Addressed extends Sources.Source {
  readonly content: URL
}

const addresses = ({ content }: Message.Message): ReadonlyArray<Addressed> =>
  typeof content === "string" ? [] : content.filter(Layout.isMedia).flatMap((media) => {
    const source = Sources.source(media)
    return source._tag === "Success" && isAddressed(source.success) ? [source.success] : []
  })

const isAddressed = (source: Sources.Source): source is Addressed =>
  source.content instanceof URL && /^https?:$/.test(source.content.protocol)

/** Whether one of the patterns for the kind of file matches. A kind may be `*`, or end in `/*`. */
const isRead = (supported: Supported, { content, mediaType }: Addressed): boolean =>
  Object.entries(supported).some(([kind, patterns]) =>
    (kind === "*" || kind === "*/*" || kind === mediaType ||
      (kind.endsWith("/*") && mediaType.startsWith(kind.slice(0, -1)))) &&
    patterns.some((pattern) => content.href.search(pattern) >= 0)
  )
