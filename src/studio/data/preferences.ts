/** Preferences about the page itself: the picture's width and the color scheme. Browsers store no session data. */

/** Color scheme. */
export type Scheme = "system" | "light" | "dark"

/** Reads a preference. Returns `undefined` if the browser stores nothing. */
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
    // The preference lasts as long as the page in a browser without storage.
  }
}

/** Returns the chosen scheme. */
export const scheme = (): Scheme => {
  const stored = read("scheme")
  return stored === "light" || stored === "dark" ? stored : "system"
}

/** Shows the page in a scheme, and stores the choice. */
export const chooseScheme = (scheme: Scheme): void => {
  write("scheme", scheme)
  showScheme(scheme)
}

/** Shows the page in a scheme. */
export const showScheme = (scheme: Scheme): void => {
  if (scheme === "system") delete document.documentElement.dataset["scheme"]
  else document.documentElement.dataset["scheme"] = scheme
}

/** Returns the picture's share of the width beside the list, in percent. */
export const pictureWidth = (): number => {
  const stored = Number(read("picture"))
  return stored >= 25 && stored <= 80 ? stored : 60
}

/** Stores the picture width. */
export const keepPictureWidth = (percent: number): void => write("picture", String(Math.round(percent)))
