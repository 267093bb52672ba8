/** Parts that are loaded behind the first page: each is there at once where the page has loaded it before it is needed. */
import { type ComponentType, lazy, type ReactNode, Suspense } from "react"

/** Returns a part that `load` brings. Nothing stands in its place until then. */
export const later = <P extends object>(load: () => Promise<ComponentType<P>>): ComponentType<P> => {
  const Part = lazy(async () => ({ default: await load() })) as unknown as ComponentType<P>
  return (properties: P): ReactNode => (
    <Suspense fallback={null}>
      <Part {...properties} />
    </Suspense>
  )
}

const dialogs = () => import("./Dialogs.tsx")

const sent = () => import("../chat/Sent.tsx")

/** A message that was sent into a run. */
export const Sent = later(async () => (await sent()).Sent)

/** The messages that no run has. */
export const Waiting = later(async () => (await sent()).Waiting)

/** Loads what a page needs soon, or when its server is not reached any more. */
export const loadLater = async (): Promise<void> => {
  await Promise.allSettled([dialogs(), sent()])
}

/** A question in a dialog. */
export const Prompt = later(async () => (await dialogs()).Prompt)

/** The keys of the page, in a dialog. */
export const Help = later(async () => (await dialogs()).Help)
