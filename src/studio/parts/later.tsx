/** Parts loaded after the first page. A part loaded in time appears immediately when needed. */
import { type ComponentType, lazy, type ReactNode, Suspense, useState } from "react"

/** A part, and its loader. */
type Later<P> = ((properties: P) => ReactNode) & { readonly load: () => Promise<ComponentType<P>> }

/** Returns a part loaded by `from`. Until then its place is empty. */
export const later = <P extends object>(from: () => Promise<ComponentType<P>>): Later<P> => {
  let known: ComponentType<P> | undefined
  const load = async () => known = await from()
  const Lazy = lazy(async () => ({ default: await load() })) as unknown as ComponentType<P>
  const Part = (properties: P): ReactNode => {
    // A lazy part waits for a moment even if loaded, and keys pressed meanwhile would be lost.
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

/** Keys of the page, in a dialog. */
export const Help = later(async () => (await dialogs()).Help)

const sent = () => import("../chat/Sent.tsx")

/** A message sent into a run. */
export const Sent = later(async () => (await sent()).Sent)

/** Messages without a run. */
export const Waiting = later(async () => (await sent()).Waiting)

/** Loads parts needed soon, or after the server becomes unreachable. */
export const loadLater = async (): Promise<void> => {
  await Promise.allSettled([Prompt.load(), Help.load(), Sent.load(), Waiting.load()])
}
