/* A browser starts no worker for a page that was opened as a file, and the search is a worker. Here
 * it runs in a hidden frame instead, so that it also works where nobody serves the site. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.frame = new Promise((resolve, reject) => {
        frame.onload = () => {
          const inside = frame.contentWindow;
          inside.postMessage = (data) =>
            this.dispatchEvent(new MessageEvent("message", { data }));
          const script = frame.contentDocument.createElement("script");
          script.src = new URL(url, location.href).href;
          script.onload = () => resolve(inside);
          script.onerror = reject;
          frame.contentDocument.body.append(script);
        };
      });
      frame.srcdoc = "<!doctype html><body></body>";
      document.body.append(frame);
    }
    postMessage(data) {
      this.frame.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
