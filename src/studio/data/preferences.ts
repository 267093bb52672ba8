/** The preferences about the page itself: widths and the scheme. Nothing of a session is stored in a browser. */

/** The scheme of the colours. */
export type Scheme = "system" | "light" | "dark"

/** Reads a preference. Returns nothing where a browser stores none. */
const read = (name: string): string | undefined => {
  try {
    return localStorage.getItem(`studio.${name}`) ?? undefined
  } catch {
    return undefined
  }
}

const write = (name: string, value: string): void => {
  try {
    localStorage.setItem(`studio.${name}`, value)
  } catch {
    // A browser that stores nothing keeps the preference as long as the page.
  }
}

/** Returns the scheme that was chosen. */
export const scheme = (): Scheme => {
  const stored = read("scheme")
  return stored === "light" || stored === "dark" ? stored : "system"
}

/** Shows the page in a scheme, and keeps the choice. */
export const chooseScheme = (scheme: Scheme): void => {
  write("scheme", scheme)
  showScheme(scheme)
}

/** Shows the page in a scheme. */
export const showScheme = (scheme: Scheme): void => {
  if (scheme === "system") delete document.documentElement.dataset["scheme"]
  else document.documentElement.dataset["scheme"] = scheme
}

/** Returns the part of the width beside the list that the picture takes, in percent. */
export const pictureWidth = (): number => {
  const stored = Number(read("picture"))
  return stored >= 25 && stored <= 80 ? stored : 60
}

/** Keeps the width of the picture. */
export const keepPictureWidth = (percent: number): void => write("picture", String(Math.round(percent)))
