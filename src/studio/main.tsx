/**
 * Entry of Studio, the application in the browser.
 */
import { StrictMode } from "react"
import { createRoot } from "react-dom/client"
import { App } from "./App.tsx"
import { Client } from "./data/client.ts"
import * as Preferences from "./data/preferences.ts"
import { Studio } from "./data/studio.ts"

const server = document.querySelector<HTMLMetaElement>("meta[name=server]")?.content ?? "./"
const studio = new Studio(new Client(server))
Preferences.showScheme(Preferences.scheme())
const root = document.getElementById("studio")
if (root !== null) {
  createRoot(root).render(
    <StrictMode>
      <App studio={studio} />
    </StrictMode>
  )
}
void studio.start()
