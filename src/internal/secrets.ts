/**
 * Where the secrets of an error are: in the request that it failed on, which it carries along, and in the URLs that its
 * texts quote.
 */

/** As objects they hold headers and keys. A schema may write a text for one, such as its name. */
export const exchanges: ReadonlySet<string> = new Set(["request", "response"])

/** What is told of a request or a response that stands where it has no such name. */
export const exchangeMembers = ["method", "url", "status", "statusText"] as const

/** Whether an object is a request or a response, whatever made it: it has headers, and what they go with. */
export const isExchange = (value: object): boolean =>
  !Array.isArray(value) && "headers" in value && exchangeMembers.some((key) => key in value)

const credential = /^(proxy-)?authorization$|^(set-)?cookie$|^(x-)?(\w+-)?api[-_]?key$|^x-[\w-]*(token|secret)$/i

/** Whether a member has the name of a header that lets its bearer in. */
export const isCredential = (name: string): boolean => name.length <= 64 && credential.test(name)

/** Bounded, since the names are foreign text: the time must not grow with the square of its length. */
const parameter = /([?&])([^=&\s#?]{1,64})=([^&\s#"'<>)]*)/g
const userInfo = /([a-z]{2,12}:\/\/)[^/\s@?#]{1,256}@/gi
const secret = /key$|token|secret|sig(nature)?$|pass(wd|word)?$|pwd$|^auth$|authorization|credential|session|jwt/i

/** Takes keys and passwords out of the URLs in a text; out of those of a request that failed, every parameter. */
export const withoutSecrets = (text: string, isAll: boolean): string =>
  text.includes("=") || text.includes("@")
    ? text.replace(userInfo, "$1").replace(
      parameter,
      (all, start: string, name: string) => isAll || secret.test(name) ? `${start}${name}=REDACTED` : all
    )
    : text
