/** Parts that are loaded behind the first page: each is there at once where the page has loaded it before it is needed. */
import { type ComponentType, lazy, type ReactNode, Suspense, useState } from "react"

/** A part, and what loads it. */
type Later<P> = ((properties: P) => ReactNode) & { readonly load: () => Promise<ComponentType<P>> }

/** Returns a part that `from` brings. Nothing stands in its place until then. */
export const later = <P extends object>(from: () => Promise<ComponentType<P>>): Later<P> => {
  let known: ComponentType<P> | undefined
  const load = async () => known = await from()
  const Lazy = lazy(async () => ({ default: await load() })) as unknown as ComponentType<P>
  const Part = (properties: P): ReactNode => {
    // A lazy part waits for a moment also where it is loaded, and keys of that moment would be lost.
    const [Known] = useState(() => known)
    return Known === undefined
      ? (
        <Suspense fallback={null}>
          <Lazy {...properties} />
        </Suspense>
      )
      : <Known {...properties} />
  }
  return Object.assign(Part, { load })
}

const dialogs = () => import("./Dialogs.tsx")

/** A question in a dialog. */
export const Prompt = later(async () => (await dialogs()).Prompt)

/** The keys of the page, in a dialog. */
export const Help = later(async () => (await dialogs()).Help)

const sent = () => import("../chat/Sent.tsx")

/** A message that was sent into a run. */
export const Sent = later(async () => (await sent()).Sent)

/** The messages that no run has. */
export const Waiting = later(async () => (await sent()).Waiting)

/** Loads what a page needs soon, or when its server is not reached any more. */
export const loadLater = async (): Promise<void> => {
  await Promise.allSettled([Prompt.load(), Help.load(), Sent.load(), Waiting.load()])
}
