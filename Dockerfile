# SPDX-License-Identifier: Apache-2.0
# One image for the server and for clients: docker build --tag agnosticfl .
# docs/deploy.md says how it is started.
FROM python:3.12-slim-bookworm AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN python -m venv /opt/agnosticfl \
    && /opt/agnosticfl/bin/pip install --no-cache-dir '.[deploy,data]'

FROM python:3.12-slim-bookworm
# tini passes signals on, and waits for processes that others have left. Whichever version the
# distribution has: it is the one that gets its fixes.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --home-dir /srv --no-create-home \
        --shell /usr/sbin/nologin agnosticfl \
    && install --directory --owner=agnosticfl --group=agnosticfl --mode=0700 /srv
COPY --from=build /opt/agnosticfl /opt/agnosticfl
ENV PATH=/opt/agnosticfl/bin:$PATH HOME=/srv PYTHONDONTWRITEBYTECODE=1
# Keys, app, stores, the state and the run folder: all that lasts.
USER 10001:10001
WORKDIR /srv
VOLUME ["/srv"]
EXPOSE 8000
HEALTHCHECK --interval=60s --timeout=20s --start-period=180s --retries=3 \
    CMD ["python", "-m", "agnosticfl.deploy.seeing.health", "deploy-state"]
ENTRYPOINT ["tini", "--", "agnosticfl"]
CMD ["deploy", "--help"]
