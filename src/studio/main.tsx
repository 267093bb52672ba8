/**
 * The entry of Studio, the application in the browser.
 *
 * @since 0.1.0
 */
import { StrictMode } from "react"
import { createRoot } from "react-dom/client"

const root = document.getElementById("studio")
if (root !== null) createRoot(root).render(<StrictMode></StrictMode>)
