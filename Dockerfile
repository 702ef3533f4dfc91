# A study in a container: docker build -t fedscape . && docker run --rm -v "$PWD/study:/study" fedscape
# Another table: docker run --rm -v "$PWD:/data:ro" -v "$PWD/study:/study" fedscape fedscape study /data/table.csv --out /study --force
FROM python:3.11-slim AS built
WORKDIR /source
COPY requirements.lock requirements-torch.lock requirements-torch-cpu.lock ./
# PIP_EXTRA_INDEX_URL may name a place with the build of torch without GPU libraries; otherwise the default one is taken.
ARG PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /fedscape \
 && install="/fedscape/bin/python -m pip install --require-hashes --no-deps --only-binary :all: -r" \
 && $install requirements.lock \
 && { $install requirements-torch-cpu.lock || $install requirements-torch.lock; }
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /fedscape/bin/python -m pip install --no-deps --no-build-isolation .

FROM python:3.11-slim
COPY --from=built /fedscape /fedscape
RUN useradd --create-home --uid 1000 fedscape && mkdir /study && chown fedscape /study
ENV PATH=/fedscape/bin:$PATH
USER 1000
WORKDIR /home/fedscape
VOLUME /study
CMD ["fedscape", "study", "--out", "/study", "--force"]
