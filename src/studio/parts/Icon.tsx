/** Page icons, drawn as lines in the neighboring text's color. */
import type { ReactNode } from "react"

const paths = {
  close: "M4 4l8 8M12 4l-8 8",
  dark: "M13 9.5A5.5 5.5 0 0 1 6.5 3a5.5 5.5 0 1 0 6.5 6.5z",
  help: "M6 6a2 2 0 1 1 2.6 1.9c-.5.2-.6.6-.6 1.1v.4M8 11.8v.1M8 14.5a6.5 6.5 0 1 1 0-13 6.5 6.5 0 0 1 0 13z",
  light:
    "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1.1 1.1M11.9 11.9 13 13M13 3l-1.1 1.1M4.1 11.9 3 13",
  list: "M2.5 4h11M2.5 8h11M2.5 12h7",
  more: "M3.5 8h.01M8 8h.01M12.5 8h.01",
  new: "M8 3v10M3 8h10",
  picture: "M2.5 4h6M5 8h8.5M3.5 12h6",
  pin: "M6 2h4l-.5 4.5 2.5 2H4l2.5-2zM8 8.5V14",
  search: "M7 12A5 5 0 1 1 7 2a5 5 0 0 1 0 10zM10.8 10.8 14 14",
  send: "M8 13V3M3.5 7.5 8 3l4.5 4.5",
  stop: "M4.5 4.5h7v7h-7z",
  system: "M2 3h12v8H2zM6 14h4M8 11v3"
} as const

/** Icon name. */
export type Name = keyof typeof paths

/** An icon. Its button needs its own name. */
export const Icon = ({ name }: { readonly name: Name }): ReactNode => (
  <svg className={`icon ${name}`} viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" focusable="false">
    <path d={paths[name]} />
  </svg>
)
