// SPDX-License-Identifier: Apache-2.0
// Browsers start no worker for a page of the file system. There, a hidden frame does the search.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = (data) =>
        setTimeout(() => this.dispatchEvent(new MessageEvent("message", { data })))
      const script = frame.contentDocument.createElement("script")
      script.src = url
      this.loaded = new Promise((resolve) => (script.onload = resolve))
      frame.contentDocument.body.append(script)
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
